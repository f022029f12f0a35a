"""Layers of this library, with content or without: left with the reason."""

import pytest
import torch

from convattn.errors import UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.replace import replace_convolutional_heads
from convattn.models import AttentionNet

SIZES = {"width": 12, "depth": 2, "heads": 3, "ffn": 8, "num_classes": 5}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"encoding": "learned_axial", "content": True},
            "heads of this library's layers with content are not replaced",
        ),
        (
            {"encoding": "quadratic"},
            "it has no content: attention_to_conv makes a convolution of it",
        ),
    ],
    ids=["content", "position"],
)
def test_layers_of_this_library_are_left(options, reason):
    torch.manual_seed(0)
    network = AttentionNet(**SIZES, **options).eval()
    report = analyze(network, torch.randn(6, 3, 14, 14), controls=(), progress=False)
    with pytest.raises(UnsupportedModelError, match=reason):
        replace_convolutional_heads(network, report, 0.5)
