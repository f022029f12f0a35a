"""What a network is compared with on the page: itself before training, and what conversion makes of it."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from convattn.convert import network_to_attention, network_to_conv
from convattn.encodings import Shift
from convattn.errors import UnsupportedModelError
from convattn.heads.catalogue import attention_layers
from convattn.layers import RelativeAttention
from convattn.viewer.build import Exhibit
from convattn.viewer.image_maps import is_positional
from convattn.wording import some

UNTRAINED, CONVERTED = "untrained", "converted"
"""Names of the two exhibits."""

_KERNEL_SIZE = 3
"""Default number of taps along each axis for heads that are not hard."""


def readable_layers(network: nn.Module) -> tuple[str, ...]:
    """Returns the names of the attention layers whose weights can be read."""
    try:
        return tuple(layer.name for layer in attention_layers(network) if layer.refused is None)
    except UnsupportedModelError:
        return ()


def untrained(first: Exhibit, drawn: nn.Module) -> Exhibit:
    """Shows a network beside itself with drawn weights, which are rounded to 16 bits to make the page smaller."""
    with torch.no_grad():
        for parameter in drawn.eval().parameters():
            parameter.copy_(parameter.half())
    note = "The same network before any training: weights drawn with seed 0, rounded to 16 bits."
    return replace(first, network=drawn, name=UNTRAINED, title=f"{first.title}, untrained", note=note, heads=())


def converted(first: Exhibit, kernel_size: int | None = None) -> Exhibit:
    """Converts convolutions to attention, or attention to convolutions and those to attention with hard heads.

    The page compares layers by their place. So of a network with attention of its own, the layers of the copy are the
    same ones, without those that convolutions became: the many heads of a patch embedding stand beside nothing.
    `kernel_size` is the number of taps along each axis; None keeps the taps of hard heads, and gives three to others.
    """
    network, images, readable = first.network, first.images, readable_layers(first.network)
    if _own_layers(network):
        convolutions, size = _as_convolutions(network, images, kernel_size)
        made, _ = network_to_attention(convolutions, images=images)
        notes = [f"Converted to convolutions{size}, and back: every head is one tap."]
    else:
        made, _ = network_to_attention(network, images=images)
        notes = ["Its convolutions as attention: every head is one tap."]
    left_out = [name for name in _own_layers(made) if name not in readable]
    if readable and left_out:
        notes.append(f"Left out are those that have no counterpart to compare: {some(left_out)}.")
    with torch.no_grad():
        before, after = network(images), made(images)
    if isinstance(before, Tensor) and before.ndim == 2:
        same = int((before.argmax(1) == after.argmax(1)).sum())
        notes.append(f"{same} of {len(images)} images get the same class.")
    note = " ".join(filter(None, [*notes, first.note]))
    layers = first.layers or readable or None
    return replace(
        first, network=made, name=CONVERTED, title=f"{first.title}, converted", note=note, heads=(), layers=layers
    )


def _as_convolutions(network: nn.Module, images: Tensor, kernel_size: int | None) -> tuple[nn.Module, str]:
    """Converts attention to convolutions, and says their size."""
    convert = partial(network_to_conv, images=images, fold=False)
    size = kernel_size or _KERNEL_SIZE
    hard = [name for name in _own_layers(network) if isinstance(network.get_submodule(name).encoding, Shift)]
    if not hard or kernel_size:
        return convert(network, kernel_size=size)[0], f" of {size} × {size}"
    made, _ = convert(network, include=hard)
    if not any(is_positional(module) for module in made.modules()):
        return made, ""
    return convert(made, kernel_size=size)[0], f", of {size} × {size} where heads are not hard"


def _own_layers(network: nn.Module) -> list[str]:
    """Returns the names of the attention layers of this library."""
    return [name for name, module in network.named_modules() if isinstance(module, RelativeAttention)]
