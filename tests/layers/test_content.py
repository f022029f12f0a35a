"""Content scores against the four terms written as loops, and the gate against its formula."""

import pytest
import torch
from torch.nn.utils import prune

from convattn.budget import budget, roundings
from convattn.encodings import LearnedAxial, Quadratic
from convattn.errors import ArgumentError
from convattn.functional.reference import content_scores, gated_weights
from convattn.layers import (
    Content,
    RelativeAttention2d,
)


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        (Content(), {"query.weight", "key.weight", "position", "content_bias"}),
        (Content(position=False), {"query.weight", "key.weight", "content_bias"}),
        (Content(content_bias=False), {"query.weight", "key.weight", "position"}),
        (
            Content(key_width=3, project_position=False),
            {"query.weight", "key.weight", "content_bias"},
        ),
        (
            Content(position=False, content_bias=False, query_bias=True, key_bias=True),
            {"query.weight", "query.bias", "key.weight", "key.bias"},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Content) else "",
)
def test_terms_have_the_parameters_they_need(content, parameters):
    layer = RelativeAttention2d(4, 6, num_heads=2, content=content)
    assert {name for name, _ in layer.content.named_parameters()} == parameters


def test_position_is_left_out_where_the_encoding_has_no_features():
    layer = RelativeAttention2d(4, 6, num_heads=2, encoding="linear_distance", content=True)
    assert layer.content.position is None
    assert not layer.content.uses_position


def test_key_width_is_the_channels_of_a_head_and_at_least_one():
    for channels, heads, width in ((8, 2, 4), (2, 3, 1)):
        layer = RelativeAttention2d(channels, 6, num_heads=heads, content=True)
        assert layer.content.query.out_features == heads * width


def test_raw_positions_are_the_same_for_all_heads():
    encoding = LearnedAxial(2, 2, extent=5, width=3, head_vectors=False)
    layer = RelativeAttention2d(
        4, 6, num_heads=2, encoding=encoding, content=Content(key_width=6, project_position=False)
    )
    with torch.no_grad():
        layer.content.query.weight[6:] = layer.content.query.weight[:6]
        layer.content.key.weight[6:] = layer.content.key.weight[:6]
    weights = layer.attention(torch.randn(1, 4, 3, 5))
    assert torch.equal(weights[:, 0], weights[:, 1])


def test_a_bias_of_the_keys_changes_nothing():
    torch.manual_seed(0)
    layer = RelativeAttention2d(4, 6, num_heads=2, content=Content(key_bias=True)).double()
    x = torch.randn(1, 4, 3, 5, dtype=torch.float64)
    before = layer.attention(x)
    with torch.no_grad():
        layer.content.key.bias.add_(3)
    assert (layer.attention(x) - before).abs().max() <= 100 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize(
    ("place", "name"), [("query", "weight"), ("key", "weight"), ("", "position")]
)
def test_pruning_takes_effect(place, name):
    torch.manual_seed(0)
    layer, x = (
        RelativeAttention2d(4, 6, num_heads=2, content=True).eval(),
        torch.randn(2, 4, 3, 5),
    )
    module = layer.content.get_submodule(place)
    prune.l1_unstructured(module, name, amount=2)
    with torch.no_grad():
        getattr(module, f"{name}_orig").mul_(3)
    pruned = layer(x)
    prune.remove(module, name)
    assert torch.equal(pruned, layer(x))


@pytest.mark.parametrize("place", ["query", "key"])
def test_hooks_on_queries_and_keys_run(place):
    layer, x = (
        RelativeAttention2d(4, 6, num_heads=2, content=True),
        torch.randn(2, 4, 3, 5),
    )
    before = layer(x)
    layer.content.get_submodule(place).register_forward_hook(lambda _, __, y: 2 * y)
    after = layer(x)
    assert not torch.equal(before, after)
    with torch.no_grad():
        layer.content.get_submodule(place).weight.mul_(2)
    layer.content.get_submodule(place)._forward_hooks.clear()
    assert torch.equal(layer(x), after)


def test_hooks_that_would_be_ignored_are_refused():
    layer, x = (
        RelativeAttention2d(4, 6, num_heads=2, content=True),
        torch.randn(2, 4, 3, 5),
    )
    layer.content.register_forward_hook(lambda _, __, y: 2 * y)
    for impl in ("auto", "reference"):
        layer.impl = impl
        with pytest.raises(ArgumentError, match=r"the forward hook .* would be ignored"):
            layer(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gate", [None, "sigmoid"])
def test_content_scores_beyond_the_range_of_float16_stay_finite(dtype, gate):
    torch.manual_seed(0)
    content = Content(key_width=4)
    layer = RelativeAttention2d(
        4, 6, num_heads=2, encoding=Quadratic(2, 2), content=content, gate=gate
    ).to(dtype)
    x = (300 * torch.randn(1, 4, 3, 5)).to(dtype).requires_grad_()
    with torch.no_grad():
        for linear in (layer.content.query, layer.content.key):
            linear.weight.copy_(torch.eye(4).repeat(2, 1))
    query = x.flatten(2).mT[:, None].float()
    assert content_scores(query, query).max() > 65504
    y = layer(x)
    assert y.isfinite().all()
    y.float().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("gate", "part"), [(40.0, "position"), (-800.0, "content")])
def test_a_closed_or_open_gate_leaves_one_distribution(gate, part):
    weights = {"content": torch.rand(1, 2, 3, 5).double(), "position": torch.rand(2, 3, 5).double()}
    mixed = gated_weights(
        weights["content"],
        weights["position"],
        torch.full((2,), gate, dtype=torch.float64).sigmoid(),
    )
    assert torch.equal(mixed, weights[part].expand(1, 2, 3, 5))


def test_gate_starts_at_one_and_learns():
    layer = RelativeAttention2d(4, 6, num_heads=2, gate="sigmoid")
    assert torch.equal(layer.gate, torch.ones(2))
    layer(torch.randn(1, 4, 3, 5)).square().sum().backward()
    assert (layer.gate.grad != 0).all()


@pytest.mark.parametrize("content", [False, True])
def test_a_gate_mixes_content_alone_with_position_unless_told_otherwise(content):
    layer = RelativeAttention2d(4, 6, num_heads=2, content=content, gate="sigmoid")
    assert layer.content_terms == Content(position=False, content_bias=False)
    own = RelativeAttention2d(4, 6, num_heads=2, content=Content(key_width=3), gate="sigmoid")
    assert own.content_terms == Content(key_width=3)


def test_a_width_below_one_is_refused():
    with pytest.raises(
        ArgumentError, match=r"content\.key_width must be an integer of at least 1, but is 0"
    ):
        Content(key_width=0)


QUADRATIC = {
    "all terms": {"content": Content(key_width=3)},
    "positions as they are": {
        "content": Content(key_width=3, project_position=False, query_bias=True)
    },
    "no content-position": {"content": Content(key_width=3, position=False)},
    "a gate": {"content": Content(key_width=3), "gate": "sigmoid"},
}
"""Options of layers whose scores of displacements may be n + 1 channels."""


def quadratic_layer(name, dtype):
    torch.manual_seed(0)
    layer = RelativeAttention2d(4, 6, num_heads=3, impl="quadratic", stride=2, **QUADRATIC[name])
    with torch.no_grad():
        layer.encoding.centres.normal_(0, 3)
        for parameter in layer.content.parameters():
            parameter.normal_()
    x = 2 * torch.rand(2, 4, 9, 7) - 1
    return layer.to(dtype), x.to(dtype)


def by(impl):
    """Returns a computation of a layer by another path."""

    def compute(layer, x):
        layer.impl = impl
        return layer(x)

    return compute


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_scores_in_few_channels_are_within_the_bound_of_the_plan(name, dtype):
    layer, x = quadratic_layer(name, dtype)
    y = layer(x)
    plan = layer.plan(tuple(x.shape), dtype)
    assert plan.path == "content"
    assert "n + 1 channels" in plan.reason
    exact = by("reference")(layer.double(), x.double())
    allowed = plan.bound + budget(exact, roundings(by("reference"), layer.to(dtype), x))
    assert (y - exact).abs().max() <= allowed
    with torch.no_grad():
        layer.encoding.centres += 100 * plan.bound  # negative control
    layer.impl = "quadratic"
    assert (layer(x) - exact).abs().max() > allowed


@torch.no_grad()
@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_scores_in_few_channels_read_no_number(name):
    """Their bound, which does, is computed only where numbers can be read."""
    layer, x = quadratic_layer(name, torch.float64)
    expected = layer(x)
    weight = layer.content.query.weight

    def output(weight):
        return torch.func.functional_call(layer, {"content.query.weight": weight}, (x,))

    first, second = torch.vmap(output)(torch.stack([weight, 2 * weight]))
    assert (first - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert (second - expected).abs().max() > 1e-3 * expected.abs().max()
    assert layer.to("meta")(x.to("meta")).shape == expected.shape


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_scores_in_few_channels_have_the_gradients_of_the_definition(name):
    layer, x = quadratic_layer(name, torch.float64)
    gradients = []
    for impl in ("quadratic", "reference"):
        layer.impl = impl
        layer(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
        layer.zero_grad()
    for found, expected in zip(*gradients, strict=True):
        # scores up to a few hundred lose that many roundings in channels
        assert (found - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)
