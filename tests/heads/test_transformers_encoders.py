"""The ViT of transformers: where its heads start."""

import re

import pytest
import torch

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze, init_heads_

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


@pytest.mark.parametrize(
    "kernel", ["flex_attention", "flash_attention_2", "paged|flash_attention_3"]
)
def test_kernels_that_hide_their_weights_are_refused_with_the_line_that_helps(kernel):
    network = build()
    network.config._attn_implementation = kernel
    refusal = (
        f"the model is run by {kernel}, which hides its weights; call `set_attn_implementation("
    )
    with pytest.raises(UnsupportedModelError, match=re.escape(refusal)):
        analyze(network, pixels())
    network.set_attn_implementation("sdpa")
    assert len(analyze(network, pixels(), controls=(), progress=False).layers) == 2


def test_a_network_of_two_towers_names_the_one_that_takes_images():
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 16,
    }
    vision = {**sizes, "image_size": 20, "patch_size": 4}
    config = transformers.CLIPConfig(vision_config=vision, text_config={**sizes, "vocab_size": 40})
    network = transformers.CLIPModel(config).eval()
    images = pixels(5, 5)
    message = (
        r"CLIPModel takes several inputs at once and was given one, float32 of shape .*20, 20\); pass the part of it"
        r" that takes them: text_model \(input_ids\) or vision_model \(pixel_values\)$"
    )
    with pytest.raises(ArgumentError, match=message):
        analyze(network, images)
    report = analyze(network.vision_model, images, controls=(), progress=False)
    assert report.layers[0].grid == (5, 5)
