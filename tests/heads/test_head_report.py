import math

import timm
import torch

from convattn.heads.head_report import Estimate, LayerStatistics, weight_digests


def test_the_mean_over_no_head_is_not_known():
    number = Estimate(0.5, 0.25)
    layer = LayerStatistics(7, (), number)
    assert math.isnan(layer.mean("distance"))


def test_weights_have_one_digest_before_and_after_a_network_has_run():
    """ConViT fills a buffer with the places of its first images."""
    network = timm.models.ConVit(
        img_size=32, embed_dim=12, depth=1, local_up_to_layer=1, num_heads=3
    )
    before = weight_digests(network, ("", "blocks.0.attn"))
    network(torch.zeros(1, 3, 32, 32))
    assert network.blocks[0].attn.rel_indices is not None
    assert weight_digests(network, before) == before
