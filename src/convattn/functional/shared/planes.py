"""The products of a grid of heads for images whose channels are planes, (images, channels, rows, cols).

Products with W_h then take all pixels of an image at once, as a 1 × 1 convolution does, and means along an axis are
products of small matrices. This suits layers of one head, and images of few channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.separable.tiles import Workspace, chunks, length_of
from convattn.functional.shared.blocks import RowStrip
from convattn.functional.shared.pixels import GridTiling, GridValues


def few_channels_first(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Takes the means along both axes, then multiplies with W_h of all heads at once; returns pixels, not planes."""
    y, workspace = x.new_empty(len(x), tiling.rows, tiling.across, values.maps.shape[1]), Workspace(x)
    assert values.whole is not None
    weight = values.whole.flatten(1).mT
    for image, pixels in zip(x.contiguous(), y, strict=True):
        mixed = _along_cols(tiling, image[None], workspace)
        for strip in tiling.strips:
            means = _along_rows(strip, mixed, _means(strip, mixed, workspace))
            out = pixels[strip.queries].flatten(0, 1)
            torch.mm(means.view(-1, len(out)).mT, weight, out=out)
            if bias is not None:
                out += bias
    return y


def plane_values_first(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Multiplies with the only W_h, then takes the means along both axes."""
    y, workspace = x.new_empty(len(x), values.maps.shape[1], tiling.rows, tiling.across), Workspace(x)
    groups, weight = values.groups, values.maps[0].unflatten(0, (values.groups, -1))
    for images in chunks(len(y), tiling.images):
        keys, out = x[images].contiguous(), y[images]
        made = workspace.get("values", len(keys), out.shape[1], *keys.shape[2:])
        for image, into in zip(keys.flatten(2), made.flatten(2), strict=True):
            torch.bmm(weight, image.unflatten(0, (groups, -1)), out=into.unflatten(0, (groups, -1)))
        mixed = _along_cols(tiling, made, workspace)
        for strip in tiling.strips:
            part = out[:, :, strip.queries]
            means = part if part.is_contiguous() else _means(strip, mixed, workspace).view(part.shape)
            _along_rows(strip, mixed, means.view(1, len(mixed), *part.shape[2:]))
            if bias is not None:
                torch.add(means, bias[:, None, None], out=part)
            elif means is not part:
                part.copy_(means)
    return y.movedim(1, -1)


def _along_cols(
    tiling: GridTiling, planes: Float[Tensor, "images channels rows cols"], workspace: Workspace
) -> Float[Tensor, "matrices_and_images_and_channels rows cols_out"]:
    """Takes means along the columns, by each matrix."""
    rows, cols = planes.shape[2:]
    if not tiling.cols:
        return planes.view(-1, rows, cols)
    lines = planes.view(-1, cols)
    mixed = workspace.get("mixed", len(tiling.cols[0].weights), len(lines), tiling.across)
    for block in tiling.cols:
        for weights, into in zip(block.weights, mixed, strict=True):
            torch.mm(lines[:, block.keys], weights, out=into[:, block.queries])
    return mixed.view(-1, rows, tiling.across)


def _means(strip: RowStrip, mixed: Tensor, workspace: Workspace) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Allocates the means along the rows of a strip."""
    return workspace.get("means", len(strip.blocks), len(mixed), length_of(strip.queries), mixed.shape[2])


def _along_rows(
    strip: RowStrip, mixed: Float[Tensor, "planes rows cols"], out: Float[Tensor, "matrices planes rows_out cols"]
) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Takes means along the rows of a strip, by each matrix."""
    for block, into in zip(strip.blocks, out, strict=True):
        keys = slice(strip.keys.start + block.keys.start, strip.keys.start + block.keys.stop)
        torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, keys], out=into)
    return out
