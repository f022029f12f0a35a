"""The key image (padded, and spread out for transposed convolutions) and the pixels that queries stand on."""

from collections.abc import Sequence

from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from convattn.errors import ShapeError
from convattn.grid import Axis, Geometry

__all__ = ["pad_keys", "query_pixels", "spread"]

_TORCH_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def pad_keys(
    x: Shaped[Tensor, "batch channels *spatial"], geometry: Geometry
) -> Shaped[Tensor, "batch channels *keys"]:
    """Makes the image that the keys are the pixels of.

    Input pixels are first spread out by the input dilation, with zeros between them, then the image is padded.
    Padded pixels are keys like the others: where they are zero they still receive attention. Where the padding is
    negative the padded image is cropped.

    Args:
        x: Images.
        geometry: Padding and input dilation, one entry per spatial axis.

    Returns:
        The key images; `x` itself where there is nothing to do.

    Raises:
        ShapeError: Reflect padding as large as the image, or circular padding larger than it.

    Example:
        >>> import torch
        >>> geometry = Geometry.parse(1, padding=[(2, 0)], padding_mode="replicate")
        >>> pad_keys(torch.tensor([[[3.0, 4.0]]]), geometry).tolist()
        [[[3.0, 3.0, 3.0, 4.0]]]
    """
    if geometry.keeps_grid:
        return x
    x = spread(x, geometry.input_dilation)
    if all(pair == (0, 0) for pair in geometry.padding):
        return x
    slack = {"reflect": 1, "circular": 0}.get(geometry.padding_mode)
    for axis, (size, pair) in enumerate(zip(x.shape[2:], geometry.padding, strict=True)):
        if slack is not None and max(pair) > size - slack:
            raise ShapeError(
                f"x must have at least {max(pair) + slack} pixels along axis {axis} for {geometry.padding_mode} padding"
                f" of {max(pair)}, but has {size}"
            )
    flat = tuple(max(pixels, 0) for pair in reversed(geometry.padding) for pixels in pair)
    padded = functional.pad(x, flat, mode=_TORCH_MODES[geometry.padding_mode])
    for dim, (before, after) in enumerate(geometry.padding, start=2):
        padded = padded[(slice(None),) * dim + (slice(max(-before, 0), padded.shape[dim] + min(after, 0)),)]
    return padded


def query_pixels(
    keys: Shaped[Tensor, "batch channels *keys"], axes: Sequence[Axis]
) -> Shaped[Tensor, "batch channels *queries"]:
    """Takes the pixels of the key image that the queries stand on.

    Args:
        keys: Key images.
        axes: Queries and keys along each axis.

    Returns:
        The key image at the queries' positions.
    """
    for dim, axis in enumerate(axes, start=2):
        if axis.queries != range(axis.keys):
            keys = keys[(slice(None),) * dim + (slice(axis.queries.start, axis.queries.stop, axis.queries.step),)]
    return keys


def spread(
    x: Shaped[Tensor, "batch channels *spatial"], steps: Sequence[int]
) -> Shaped[Tensor, "batch channels *spread"]:
    """Puts zeros between neighbouring pixels.

    Args:
        x: Images.
        steps: n of each axis, along which n − 1 zeros come between two pixels.

    Returns:
        The wider images; `x` itself where every n is 1.
    """
    if set(steps) == {1}:
        return x
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *sizes)
    wide[(slice(None), slice(None), *(slice(None, None, step) for step in steps))] = x
    return wide
