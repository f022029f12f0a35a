"""The ViT of transformers: what it returns, and what it convolves."""

import pytest
import torch
from tests.convert.network.network_cases import assert_unchanged, fingerprint
from tests.heads.vit_cases import attentions, convolved_by_heads

from convattn.budget import assert_within_budget
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import convolutional_init

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


def last(network, x):
    return network(x).last_hidden_state


def pixels(rows=5, cols=7):
    return torch.randn(2, 3, 4 * rows, 4 * cols, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("heads", [3, 12])
@pytest.mark.parametrize(
    ("kind", "field", "shape"),
    [
        ("ViTModel", "last_hidden_state", (2, 36, 24)),
        ("ViTForImageClassification", "logits", (2, 2)),
        ("ViTForMaskedImageModeling", "loss", None),
    ],
)
def test_every_model(kind, field, shape, heads):
    network = build(kind, heads)
    before = fingerprint(network)
    made, record = convolutional_init(network)
    assert_unchanged(network, before)
    assert (record.exact, record.passed, record.grid, record.prefix_tokens) == (
        True,
        True,
        (5, 7),
        1,
    )
    assert (record.heads_before, record.heads, record.model) == (heads, max(heads, 9), kind)
    if shape is not None:
        assert getattr(made(pixel_values=pixels()), field).shape == shape
        assert len(made(pixels(), output_hidden_states=True).hidden_states) == 3
    for attention in attentions(made):
        x = torch.randn(2, 36, 24)
        with torch.no_grad():
            assert_within_budget(
                attention(x)[:, 1:], *convolved_by_heads(attention, x, record.heads, (3, 3))
            )


def test_a_changed_scale_is_kept():
    """Four times the scale is four times the queries, in every bit."""
    scaled, multiplied = build(), build()
    for layer in scaled.layers:
        layer.attention.scaling *= 4
    with torch.no_grad():
        for layer in multiplied.layers:
            for part in layer.attention.q_proj.parameters():
                part.mul_(4)
    one, two, same = (
        convolutional_init(network, content_share=0.5)[0](pixels()).last_hidden_state
        for network in (scaled, multiplied, build())
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, same)


def test_images_of_other_sizes():
    made, _ = convolutional_init(build(image_size=24))
    made(pixels(4, 9), interpolate_pos_encoding=True)  # as many patches as 6 x 6
    assert {attention.grid.sizes for attention in attentions(made)} == {(4, 9)}


def test_a_network_in_training_with_checkpoints():
    made, _ = convolutional_init(build(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    made.train()
    getattr(made, "activation_checkpointing_enable", made.gradient_checkpointing_enable)()
    made(pixels()).last_hidden_state.square().sum().backward()
    assert attentions(made)[0].gate.grad.abs().min() > 0


def test_weights_and_masks_are_refused():
    made, _ = convolutional_init(build(attn_implementation="eager"))
    message = r"^output_attentions must be False, but is True: the weights of all tokens are never computed$"
    with pytest.raises(ArgumentError, match=message):
        made(pixels(), output_attentions=True)
    made.config.output_attentions = True
    with pytest.raises(ArgumentError, match=message):
        made(pixels())
    made.config.output_attentions = False
    with pytest.raises(ArgumentError, match=r"^attention_mask must be None: .* take no mask$"):
        made(pixels(), attention_mask=torch.tensor([[1] * 30 + [0] * 6] * 2))


def test_weights_asked_for_before_do_not_matter():
    network = build(attn_implementation="eager")
    network(pixels(), output_attentions=True)  # transformers hooks what it writes down
    made, record = convolutional_init(network)
    assert record.passed
    assert made(pixels(), output_hidden_states=True).hidden_states[0].shape == (2, 36, 24)


def test_other_layouts_and_models_are_refused():
    network = build()
    network.layers[0].attention.query = network.layers[0].attention.q_proj
    del network.layers[0].attention.q_proj
    with pytest.raises(
        UnsupportedModelError,
        match=r"layers\.0\.attention \(ViTAttention\): it has no q_proj: only the layout",
    ):
        convolutional_init(network)
    swin = transformers.SwinModel(
        transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[2], image_size=28)
    )
    with pytest.raises(
        UnsupportedModelError, match="SwinModel as a convolution: it attends in windows"
    ):
        convolutional_init(swin)
