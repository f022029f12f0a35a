"""The products of a grid of heads for images whose channels are planes, (images, channels, rows, cols).

Products with W_h then have all pixels of an image side by side, as in a convolution of one pixel, and means along an
axis are products of small matrices. This suits layers of one head, and images of few channels.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.separable.tiles import Workspace
from convattn.functional.shared.blocks import Strip
from convattn.functional.shared.orders import GridValues, Pieces


def few_channels_first(
    pieces: Pieces, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Takes the means along both axes, then multiplies with W_h of all heads at once and leaves pixels."""
    y, workspace = pieces.output(x, values), Workspace(x)
    assert values.whole is not None
    weight = values.whole.flatten(1).mT
    for image, pixels in zip(x.contiguous(), y, strict=True):
        mixed = _along_cols(pieces, image[None], workspace)
        for strip in pieces.strips:
            means = _along_rows(strip, mixed, _means(strip, mixed, workspace))
            out = pixels[strip.queries].flatten(0, 1)
            torch.mm(means.view(-1, len(out)).mT, weight, out=out)
            if bias is not None:
                out += bias
    return y


def plane_values_first(
    pieces: Pieces, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Multiplies with the only W_h, then takes the means along both axes."""
    y, workspace = x.new_empty(len(x), values.maps.shape[1], pieces.rows, pieces.across), Workspace(x)
    for images in _images(pieces, len(y)):
        keys, out = x[images].contiguous(), y[images]
        made = workspace.get("values", len(keys), out.shape[1], *keys.shape[2:])
        _multiply(values, keys.flatten(2), made.flatten(2))
        mixed = _along_cols(pieces, made, workspace)
        for strip in pieces.strips:
            part = out[:, :, strip.queries]
            means = part if part.is_contiguous() else _means(strip, mixed, workspace).view(part.shape)
            _along_rows(strip, mixed, means.view(1, len(mixed), *part.shape[2:]))
            if bias is not None:
                torch.add(means, bias[:, None, None], out=part)
            elif means is not part:
                part.copy_(means)
    return y.movedim(1, -1)


def _images(pieces: Pieces, batch: int) -> Iterator[slice]:
    for first in range(0, batch, pieces.images):
        yield slice(first, min(first + pieces.images, batch))


def _along_cols(
    pieces: Pieces, planes: Float[Tensor, "images channels rows cols"], workspace: Workspace
) -> Float[Tensor, "matrices_and_images_and_channels rows cols_out"]:
    """Takes means along the columns, by each matrix."""
    rows, cols = planes.shape[2:]
    if not pieces.cols:
        return planes.view(-1, rows, cols)
    lines = planes.view(-1, cols)
    mixed = workspace.get("mixed", len(pieces.cols[0].weights), len(lines), pieces.across)
    for block in pieces.cols:
        for weights, into in zip(block.weights, mixed, strict=True):
            torch.mm(lines[:, block.keys], weights, out=into[:, block.queries])
    return mixed.view(-1, rows, pieces.across)


def _means(strip: Strip, mixed: Tensor, workspace: Workspace) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Returns memory for the means along the rows of a strip."""
    count = strip.queries.stop - strip.queries.start
    return workspace.get("means", len(strip.blocks), len(mixed), count, mixed.shape[2])


def _along_rows(
    strip: Strip, mixed: Float[Tensor, "planes rows cols"], out: Float[Tensor, "matrices planes rows_out cols"]
) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Takes means along the rows of a strip, by each matrix."""
    for block, into in zip(strip.blocks, out, strict=True):
        keys = slice(strip.keys.start + block.keys.start, strip.keys.start + block.keys.stop)
        torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, keys], out=into)
    return out


def _multiply(
    values: GridValues, keys: Float[Tensor, "images channels pixels"], out: Float[Tensor, "images outputs pixels"]
) -> None:
    """Multiplies with the matrix of the only head."""
    weight = values.maps[0].unflatten(0, (values.groups, -1))
    for image, into in zip(keys, out, strict=True):
        torch.bmm(weight, image.unflatten(0, (values.groups, -1)), out=into.unflatten(0, (values.groups, -1)))
