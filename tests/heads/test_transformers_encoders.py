"""The ViT of transformers: where its heads start."""

import pytest
import torch

from convattn.errors import UnsupportedModelError
from convattn.heads import init_heads_

transformers = pytest.importorskip("transformers")

CONFIG = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": (20, 28),
    "patch_size": 4,
    "encoder_stride": 4,
}


def build(kind="ViTModel", heads=12, **options):
    torch.manual_seed(0)
    config = transformers.ViTConfig(**{**CONFIG, "num_attention_heads": heads, **options})
    network = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return network


def pixels(rows=5, cols=7):
    return torch.randn(2, 3, 4 * rows, 4 * cols, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "kind", ["ViTModel", "ViTForImageClassification", "ViTForMaskedImageModeling"]
)
def test_heads_of_every_model_start_on_their_taps(kind):
    network = build(kind, heads=4, hidden_size=48, image_size=20)
    names = [name for name, _ in network.named_parameters()]
    masses = init_heads_(network, "exact")
    assert min(masses) > 0.99
    assert len(masses) == 2
    assert [name for name, _ in network.named_parameters()] == names
    network(pixels(5, 5))


def test_other_layouts_and_models_are_refused():
    network = build()
    network.layers[0].attention.query = network.layers[0].attention.q_proj
    del network.layers[0].attention.q_proj
    with pytest.raises(
        UnsupportedModelError,
        match=r"layers\.0\.attention \(ViTAttention\): its q_proj must be an nn.Linear, but",
    ):
        init_heads_(network, "impulse")
    swin = transformers.SwinModel(
        transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[2], image_size=28)
    )
    with pytest.raises(UnsupportedModelError, match="SwinModel: supported are VisionTransformer"):
        init_heads_(swin, "impulse")
