"""Autocast leaves float64 as it is, on every path."""

import pytest
import torch

from convattn.encodings import Quadratic, Shift
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention1d, RelativeAttention2d, RelativeAttention3d

CENTRES = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
HARD = [[0, 0], [0, 1], [1, 0], [1, 1]]


def layers():
    """Makes a layer of each path in float64, with images."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 12, 11, dtype=torch.float64)
    for sharpness in (0.5, 40.0):
        for impl in ("auto", "reference", "separable", "dense", "fourier"):
            encoding = Quadratic(4, 2, centres=CENTRES, sharpness=sharpness)
            yield (
                RelativeAttention2d(
                    3, 5, num_heads=4, encoding=encoding, impl=impl, dtype=torch.float64
                ),
                image,
            )
    yield (
        RelativeAttention2d(
            3, 5, num_heads=4, encoding=Shift(4, 2, displacements=HARD), dtype=torch.float64
        ),
        image,
    )
    yield (
        RelativeAttention2d(
            3, 5, num_heads=4, encoding="learned_axial", content=True, dtype=torch.float64
        ),
        image,
    )
    yield (
        RelativeAttention2d(
            3, 5, num_heads=4, encoding="quadratic", dtype=torch.float64, gate="sigmoid"
        ),
        image,
    )
    long = Quadratic(2, 1, centres=[[0.0], [1.0]], sharpness=0.02)
    yield (
        RelativeAttention1d(4, 3, num_heads=2, encoding=long, dtype=torch.float64),
        torch.randn(1, 4, 4096, dtype=torch.float64),
    )


@pytest.mark.parametrize("gradients", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("number", range(14))
def test_float64_stays_float64(number, gradients):
    layer, x = list(layers())[number]
    expected = layer(x).detach()
    with torch.set_grad_enabled(gradients), torch.autocast("cpu"):
        y = layer(x)
    assert y.dtype == torch.float64
    # Products may be taken in another order under autocast, so a few roundings apart.
    assert (y - expected).abs().max() <= 64 * torch.finfo(torch.float64).eps * expected.abs().max()


@pytest.mark.parametrize("number", range(14))
def test_other_dtypes_are_not_mixed_with_it(number):
    layer, x = list(layers())[number]
    with (
        torch.autocast("cpu"),
        pytest.raises(ArgumentError, match=r"^x must be of the weights' dtype torch\.float64, but"),
    ):
        layer(x.float())


@pytest.mark.parametrize("sizes", [(7, 9), (3, 5, 4), (7, 11)], ids=str)
def test_axes_of_small_images_are_joined_unless_the_call_is_small(sizes):
    kind = {2: RelativeAttention2d, 3: RelativeAttention3d}[len(sizes)]
    layer = kind(3, 5, num_heads=4, encoding="quadratic")
    for enabled, batch in ((False, 2), (False, 700), (True, 2), (True, 700)):
        with torch.autocast("cpu", enabled=enabled):
            joined = "those of all pairs" in layer.plan((batch, 3, *sizes)).reason
        assert joined == (batch == 700 and sizes != (7, 11)), (enabled, batch)
