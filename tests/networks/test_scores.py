import torch

from convattn.models import ConvNet
from convattn.networks.datasets import class_scores


def test_scores_of_parts_are_those_of_all_images_in_their_order(monkeypatch):
    torch.manual_seed(0)
    network, images = (
        ConvNet(width=8, depth=1, ffn=8).double().eval(),
        torch.randn(7, 3, 8, 8, dtype=torch.float64),
    )
    monkeypatch.setattr("convattn.networks.datasets._AT_ONCE", 3)
    parts = class_scores(network, images)
    assert parts.shape == (7, 10)
    assert not parts.requires_grad
    assert torch.equal(
        parts, torch.cat([network(images[:3]), network(images[3:6]), network(images[6:])])
    )
