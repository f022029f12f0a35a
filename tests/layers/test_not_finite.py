"""How far one pixel that is not finite reaches, on each path: what `docs/explanation/derivatives.md` promises."""

import pytest
import torch

from convattn.encodings import Quadratic
from convattn.layers import RelativeAttention2d

CENTRES = [[0.0, 1.0], [1.0, -1.0], [0.0, 0.0]]
every_bad = pytest.mark.parametrize("bad", [float("nan"), float("inf")])
every_mode = pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])


def made(impl, sharpness=0.5, **options):
    torch.manual_seed(0)
    encoding = Quadratic(3, 2, centres=CENTRES, sharpness=sharpness)
    return RelativeAttention2d(4, 4, num_heads=3, encoding=encoding, groups=2, impl=impl, **options)


def reached(layer, bad, *, gradients):
    """Finds the outputs that are not finite where one pixel of one channel is not, and the others as they would be."""
    x = torch.randn(2, 4, 12, 11, generator=torch.Generator().manual_seed(1))
    with torch.set_grad_enabled(gradients):
        clean = layer(x).detach()
        x[0, 1, 4, 5] = bad
        y = layer(x).detach()
    found = ~y.isfinite()
    assert torch.equal(y[1], clean[1])
    return found, torch.equal(y[0, 2:], clean[0, 2:])


@every_bad
@every_mode
@pytest.mark.parametrize("impl", ["reference", "dense", "separable", "fourier"])
def test_soft_heads_carry_it_to_every_query_of_its_image_and_group(impl, bad, gradients):
    found, others_same = reached(made(impl), bad, gradients=gradients)
    assert found[0, :2].all()
    assert found.sum() == found[0, :2].sum()
    assert others_same


@every_bad
@every_mode
@pytest.mark.parametrize("impl", ["auto", "shift"])
def test_hard_heads_carry_it_where_a_convolution_does(impl, bad, gradients):
    """`auto` computes hard heads as a convolution with the smallest kernel that holds them: here two rows of three."""
    found, others_same = reached(made(impl, sharpness=800.0), bad, gradients=gradients)
    expected = torch.zeros_like(found)
    expected[0, :2, 3:5, 4:7] = True
    assert torch.equal(found, expected)
    assert others_same


@every_bad
@pytest.mark.parametrize("impl", ["reference", "dense", "separable"])
def test_hard_heads_as_softmax_carry_it_no_farther_than_their_group(impl, bad):
    """0 · NaN is NaN: it reaches at least the taps' queries, and at most all of its image and group."""
    found, others_same = reached(made(impl, sharpness=800.0), bad, gradients=True)
    taps, _ = reached(made("shift", sharpness=800.0), bad, gradients=True)
    assert found[taps].all()
    assert not found[:, 2:].any()
    assert others_same


@every_mode
def test_content_carries_nan_to_the_whole_image(gradients):
    """Scores read every channel, so there is no group that it stays in."""
    for layer in (made("content", content=True), made("content", gate="sigmoid")):
        found, _ = reached(layer, float("nan"), gradients=gradients)
        assert found[0].all()
        assert not found[1].any()
