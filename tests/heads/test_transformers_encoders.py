"""The ViT of transformers: where its heads start."""

import re

import pytest
import torch

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze, attention_maps, init_heads_

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
        r"images must fit the network, but on float32 of shape .*20, 20\) it raised AttributeError: .* has no attribute"
        r" 'shape'; if CLIPModel takes several inputs at once, pass all by their names, or the part that takes this"
        r" one: text_model \(input_ids\) or vision_model \(pixel_values\)$"
    )
    with pytest.raises(ArgumentError, match=message):
        analyze(network, images)
    decoding = transformers.T5Model(
        transformers.T5Config(vocab_size=40, d_model=12, d_kv=4, d_ff=8, num_layers=1, num_heads=3)
    )
    words = torch.ones(2, 7, dtype=torch.long)
    with pytest.raises(
        ArgumentError, match=r"one: encoder \(input_ids\) or decoder \(input_ids\)$"
    ):
        analyze(decoding, words)
    assert len(attention_maps(decoding.encoder, words)) == 1
    report = analyze(network.vision_model, images, controls=(), progress=False)
    assert report.layers[0].grid == (5, 5)


def test_what_a_processor_of_transformers_returns_is_read_as_a_dict():
    network, inputs = build(), {"pixel_values": pixels()}
    maps = attention_maps(network, transformers.BatchFeature(inputs))
    for name, expected in attention_maps(network, inputs).items():
        assert torch.equal(maps[name], expected), name
