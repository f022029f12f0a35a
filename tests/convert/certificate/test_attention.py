from itertools import product

import pytest
import torch
from torch import nn

from convattn.convert import conv_to_attention
from convattn.convert.layer_check import smallest_image
from convattn.errors import ArgumentError, ShapeError
from convattn.grid import PADDING_MODES, Geometry
from convattn.layers import relative


def test_certificate_describes_the_conversion():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, stride=2, padding=1)
    layer, certificate = conv_to_attention(conv)
    assert certificate.direction == "conv_to_attention"
    assert certificate.source == repr(conv)
    assert (
        "RelativeAttention2d(3, 5, num_heads=9, kernel_size=(3, 3), stride=(2, 2), padding=((1, 1), (1, 1))"
        in certificate.result
    )
    assert certificate.result.endswith(f"encoding={layer.encoding})")
    assert (
        certificate.dtype,
        certificate.heads,
        certificate.bound,
        certificate.bound_per_unit,
    ) == ("float32", 9, 0, 0)
    assert certificate.check_shape == (2, 3, 4, 5)
    assert certificate.measured_error <= certificate.rounding
    assert certificate.not_covered == ()
    soft = conv_to_attention(conv, sharpness=5.0)[1]
    assert soft.not_covered == ("centres rounded when the layer is cast to a narrower dtype",)


def test_the_same_conversion_has_the_same_certificate_and_leaves_the_random_state_of_others_alone():
    conv = nn.ConvTranspose1d(3, 5, 4, stride=3, output_padding=1)
    first = conv_to_attention(conv)[1]
    torch.manual_seed(9)
    state = torch.get_rng_state()
    assert conv_to_attention(conv)[1] == first
    assert torch.equal(torch.get_rng_state(), state)
    assert "output_padding is used instead" in first.not_covered[0]


def test_a_layer_whose_own_path_is_wrong_does_not_pass(monkeypatch):
    """Hard heads run as a convolution; the softmax of the same heads alone does not prove it right."""
    convolve = relative.convolve
    monkeypatch.setattr(relative, "convolve", lambda *arguments: 1.01 * convolve(*arguments))
    assert not conv_to_attention(nn.Conv2d(3, 5, 3, padding=1))[1].passed
    assert conv_to_attention(nn.Conv2d(3, 5, 3, padding=1), impl="separable")[1].passed


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_the_smallest_image_just_holds_the_window(mode):
    for k, dilation, spread, before, after in product(
        (1, 2, 5), (1, 3), (1, 2, 3), (-1, 0, 2), (-2, 0, 3)
    ):
        options = {
            "kernel_size": k,
            "dilation": dilation,
            "input_dilation": spread,
            "padding": [(before, after)],
        }
        try:
            geometry = Geometry.parse(1, padding_mode=mode, **options)
        except ArgumentError:  # this mode does not pad so
            continue
        (size,) = smallest_image(geometry)
        geometry.axes([size])
        if mode in ("zeros", "replicate") or spread == 1:
            with pytest.raises(ShapeError):
                geometry.axes([size - 1])
