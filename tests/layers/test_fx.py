"""Graphs of `torch.fx`, in which a layer is one node, as torch's own layers are."""

import pytest
import torch
from torch import fx, nn
from torchvision.models.feature_extraction import create_feature_extractor

from convattn import freeze
from convattn.errors import ArgumentError
from convattn.layers import NormalisedConv, RelativeAttention2d

pytestmark = pytest.mark.usefixtures("without_type_checks")  # what is traced is no tensor

X = torch.randn(2, 3, 7, 11, generator=torch.Generator().manual_seed(0))
MADE = {
    "soft": lambda: RelativeAttention2d(3, 5, 3, padding=1),
    "hard": lambda: RelativeAttention2d(3, 5, 3, padding=1, encoding="shift"),
    "content": lambda: RelativeAttention2d(3, 5, num_heads=2, content=True),
    "normalised": lambda: NormalisedConv(3, 5, 2, box=[(-1, 1), (-2, 0)]),
    "frozen": lambda: freeze(RelativeAttention2d(3, 5, num_heads=2), X),
}


@pytest.mark.parametrize("name", MADE)
def test_a_layer_is_one_node(name):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Sequential(MADE[name](), nn.ReLU()), nn.Conv2d(5, 2, 1))
    graph = fx.symbolic_trace(network)
    assert [str(node.target) for node in graph.graph.nodes][1:-1] == ["0.0", "0.1", "1"]
    assert torch.equal(graph(X), network(X))


def test_features_of_torchvision():
    network = nn.Sequential(MADE["soft"](), nn.ReLU(), nn.Conv2d(5, 2, 1)).eval()
    features = create_feature_extractor(network, {"0": "attention", "1": "activation"})(X)
    assert torch.equal(features["attention"], network[0](X))
    assert torch.equal(features["activation"], network[:2](X))


def test_a_layer_alone_is_refused():
    with pytest.raises(ArgumentError, match=r"cannot trace a layer alone: trace nn.Sequential\("):
        fx.symbolic_trace(MADE["soft"]())
