"""Random numbers of networks: their state is kept, images are drawn, and several runs draw the same ones."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from convattn.errors import ArgumentError, must_be

SEED = 0
"""Seed of random images."""

_SIZE = (3, 224, 224)
"""Size of an image that is drawn where none is given."""


@contextmanager
def keep_random_state(network: nn.Module | None = None) -> Iterator[None]:
    """Restores random states on leaving: torch's, on the CPU and on the network's devices, numpy's and Python's.

    Without a network, torch's are those of all devices.
    """
    devices = set(range(torch.cuda.device_count()))
    if network is not None:
        devices = _cuda_devices(network)
    of_numpy = np.random.get_state()  # noqa: NPY002 - the one that networks draw from
    of_python = random.getstate()
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)


@contextmanager
def from_seed(network: nn.Module) -> Iterator[None]:
    """Lets all random numbers start from `SEED` inside, and restores their states on leaving."""
    with keep_random_state(network):
        seed_torch(network, SEED)
        np.random.seed(SEED)  # noqa: NPY002
        random.seed(SEED)
        yield


def seed_torch(network: nn.Module, seed: int) -> None:
    """Seeds torch on the CPU and on the network's devices; `torch.manual_seed` would seed those of others, too."""
    if any(one.device.type not in ("cpu", "cuda", "meta") for one in network.parameters()):
        torch.manual_seed(seed)
    torch.default_generator.manual_seed(seed)
    for device in _cuda_devices(network):
        torch.cuda.default_generators[device].manual_seed(seed)


def _cuda_devices(network: nn.Module) -> set[int]:
    return {one.device.index or 0 for one in network.parameters() if one.is_cuda}


def draw_image(network: nn.Module, shape: tuple[int, ...] | None = None) -> Tensor:
    """Draws one standard normal image in the network's dtype; `shape` leaves out the batch.

    None takes the size for which a network of timm or of this library was built, or else 3 x 224 x 224. A size that
    cannot be drawn raises ArgumentError.
    """
    size = shape or _SIZE
    config = getattr(network, "default_cfg", None)
    made_with = getattr(network, "arguments", None)
    if shape is None and isinstance(config, Mapping):
        size = config.get("input_size") or _SIZE
        size = (size[0], *(built_for(network) or size[1:]))
    elif shape is None and isinstance(made_with, Mapping) and "in_channels" in made_with:
        side = made_with.get("image_size", 32)
        size = (made_with["in_channels"], side, side)
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    try:
        drawn = standard_normal((1, *size))
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError):
        expectation = "the shape of an image that fits into memory"
        raise ArgumentError(must_be("shape", expectation, tuple(size))) from None
    return drawn.to(like)


def built_for(network: nn.Module) -> tuple[int, ...] | None:
    """Returns rows and columns for which a network of timm was built, which its configuration does not follow."""
    return getattr(getattr(network, "patch_embed", None), "img_size", None)


def standard_normal(shape: Sequence[int]) -> Tensor:
    """Draws standard normal numbers in float64 on the CPU."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


_aten = torch.ops.aten

_FILLS = frozenset(
    [_aten.bernoulli_, _aten.uniform_, _aten.normal_, _aten.exponential_, _aten.log_normal_]
)
_DRAWS = frozenset([_aten.bernoulli, _aten.rand, _aten.rand_like, _aten.randn, _aten.randn_like])
"""Torch's operations that fill a tensor with random numbers, and those that return one. Dropout on CUDA is another."""


class SameDraws(TorchDispatchMode):
    """Draws random numbers in float32 and row by row, so that runs in all dtypes and memory layouts get the same ones.

    Code that `torch.compile` made runs uncompiled inside.
    """

    drew = False  # Whether there was any

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False, or torch would load its compiler, which takes a second, with the first of these modes."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = func.overloadpacket
        if operation not in _FILLS | _DRAWS | {_aten.native_dropout}:
            return func(*args, **kwargs)
        self.drew = True
        if operation is _aten.native_dropout:
            x, share, _ = args
            mask = torch.empty(x.shape, device=x.device).bernoulli_(1 - share)
            return x * mask.to(x.dtype) / (1 - share), mask.bool()
        narrow, options = tree_map_only(
            Tensor,
            lambda x: x.to(torch.float32, memory_format=torch.contiguous_format, copy=True),
            (args, kwargs),
        )
        if operation in _FILLS:
            return args[0].copy_(func(*narrow, **options))
        dtype = kwargs.get("dtype") or getattr(args[0], "dtype", torch.get_default_dtype())
        if "dtype" in kwargs:
            options["dtype"] = torch.float32
        return func(*narrow, **options).to(dtype)
