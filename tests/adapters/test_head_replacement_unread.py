"""Layers whose heads are left, with the reason, and networks that are not compared."""

import pytest
from tests.adapters.report_cases import (
    attention_maps,
    bert,
    images,
    report_of,
    timm_vit,
)
from torch import nn

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.catalogue import read_matrices
from convattn.heads.replace import replace_convolutional_heads


def torch_layer(**options):
    return nn.MultiheadAttention(15, 3, **{"batch_first": True, **options})


UNREAD = {
    "a decoder": (
        lambda: bert(is_decoder=True).encoder.layer[0].attention.self,
        "it is a decoder's, which sees only what comes before",
    ),
    "keys of another width": (lambda: torch_layer(kdim=7), "its keys and values have widths of their own"),
    "learned keys": (
        lambda: torch_layer(add_bias_kv=True),
        "it has learned keys and values beside the tokens",
    ),
    "an empty key": (lambda: torch_layer(add_zero_attn=True), "it has learned keys and values beside the tokens"),
    "images second": (lambda: torch_layer(batch_first=False), "its batch is the second axis"),
    "no attention": (lambda: nn.Linear(15, 15), "attention of its class is not replaced"),
}


@pytest.mark.parametrize(("build", "reason"), UNREAD.values(), ids=UNREAD)
def test_layers_that_are_not_read_have_a_reason(build, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        read_matrices(build())
    assert str(caught.value) == reason


class Total(nn.Module):
    """Gives out one number for all images."""

    def forward(self, x):
        return x.sum()


class Named(nn.Module):
    """Gives out no tensor."""

    def forward(self, x):
        return {"images": len(x)}


@pytest.mark.parametrize("last", [Total, Named])
def test_networks_without_a_row_for_each_image_are_not_compared(last):
    network = nn.Sequential(timm_vit(), last())
    report = report_of(network, attention_maps(network, images()))
    with pytest.raises(ArgumentError, match=r"the network must return a tensor with one row for each image$"):
        replace_convolutional_heads(network, report, images=images())
