"""Hashes that tell whether an analysis goes on with the same network and the same images."""

import hashlib
import re

import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def digest_tensor(before: str, tensor: Tensor) -> str:
    """Returns a hash of the hash `before` and of a tensor's values."""
    found = hashlib.sha256(f"{before} {tuple(tensor.shape)} {tensor.dtype}".encode())
    found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_model(model: nn.Module) -> str:
    """Returns a hash of a network: its class, its modules with their plain attributes, parameters and buffers by name.

    Sizes that no tensor has, as the number of heads, are such attributes; not all of them are in what `repr` shows.
    """
    found = hashlib.sha256(f"{type(model).__module__}.{type(model).__qualname__}".encode())
    found.update(_ADDRESS.sub("", repr(model)).encode())
    for name, module in model.named_modules():
        plain = [(key, value) for key, value in vars(module).items() if isinstance(value, int | float | str)]
        found.update(repr((name, sorted(pair for pair in plain if pair[0] != "training"))).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.update(f"{name} {digest_tensor('', tensor)}".encode())
    return found.hexdigest()
