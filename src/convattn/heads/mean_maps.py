"""Mean attention maps of the layers of a network over images."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, must_be_a
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch

_AT_ONCE = 4
"""Images whose maps are held at a time."""


def mean_maps(
    model: nn.Module,
    images: Tensor | Mapping[str, Tensor],
    *,
    layers: str | Sequence[str] | None = None,
) -> dict[str, Float[Tensor, "groups heads queries keys"]]:
    """Averages the attention of every head over images, pair by pair, for `replace_heads` with by="mean_map".

    Args:
        model: The network.
        images: A batch of what it is called with, or a batch of each input by the name of the argument.
        layers: Names or patterns of the layers, as in `analyze`; None for all that can be read.

    Returns:
        The mean weights of each layer by its name, on the CPU.

    Raises:
        ArgumentError: The images are no batch or do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1)
        >>> mean_maps(vit, torch.randn(4, 3, 48, 48))["blocks.0.attn"].shape
        torch.Size([1, 3, 10, 10])
    """
    inputs = images if isinstance(images, Mapping) else {"": images}
    if not all(isinstance(batch, Tensor) and batch.ndim for batch in inputs.values()) or not inputs:
        expected = "a batch of images (Tensor), or a mapping from the name of each input to a batch"
        raise ArgumentError(must_be_a("images", expected, images))
    sums: dict[str, Tensor] = {}

    def add(call: AttentionCall) -> None:
        total = call.weights.sum(0, dtype=torch.float64).cpu()
        sums[call.name] = sums.get(call.name, 0) + total

    parts = [batch.split(_AT_ONCE) for batch in inputs.values()]
    for batches in zip(*parts, strict=True):
        batch = dict(zip(inputs, batches, strict=True))
        watch(model, batch.get("", batch), add, layers=layers)
    count = len(next(iter(inputs.values())))
    return {name: (total / count).float() for name, total in sums.items()}
