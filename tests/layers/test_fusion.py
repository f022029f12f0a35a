"""Layers fused with the map that follows, against the two one after the other."""

import copy
from functools import partial

import pytest
import torch
from tests.encodings.formula_cases import FORMULAS
from tests.layers.layer_cases import LAYERS, LayerCase, one_of_each
from tests.layers.wrong_maps import WRONG_MAPS, hooked
from tests.testing.dense import as_dtype, dense_attention
from torch import nn
from torch.nn.utils import prune

from convattn.convert import load_layer, save_layer
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention1d, RelativeAttention2d, fuse
from convattn.testing.budget import assert_within_budget, references
from convattn.testing.contracts import stir

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (13,), 2: (5, 7), 3: (2, 3, 5)}


def build(case, *, dtype=torch.float32, **options):
    torch.manual_seed(3)
    return case.settle(stir(case.create(3, 5, **options))).eval().to(dtype)


def images(dims, dtype=torch.float32):
    return torch.randn(
        2, 3, *SIZES[dims], generator=torch.Generator().manual_seed(5), dtype=torch.float64
    ).to(dtype)


def pixel_map(kind, dims, *, bias=True, dtype=torch.float32):
    torch.manual_seed(7)
    made = (
        nn.Linear(5, 11, bias=bias) if kind == "linear" else CONVOLUTIONS[dims](5, 11, 1, bias=bias)
    )
    return made.to(dtype)


def one_after_the_other(layer, following, x, formula, *, backwards=False):
    """By definition: the layer query by query, then the map of every pixel, channel by channel."""
    y = dense_attention(layer, x, formula, backwards=backwards).movedim(1, -1)
    columns = list(zip(following.weight.flatten(1).T, y.unbind(-1), strict=True))[
        :: -1 if backwards else 1
    ]
    mapped = sum(channel[..., None] * column for column, channel in columns)
    return (mapped if following.bias is None else mapped + following.bias).movedim(-1, 1)


def check(actual, layer, following, x, formula):
    wide = torch.promote_types(x.dtype, torch.float32)  # layers compute with more bits than fewer
    given = as_dtype(layer, wide), copy.deepcopy(following).to(wide), x.to(wide)
    hi, lows = references(partial(one_after_the_other, formula=formula), *given)
    lows = [low.to(x.dtype) for low in lows]
    lows += [
        one_after_the_other(layer, following, x, formula, backwards=backwards)
        for backwards in (False, True)
    ]
    assert_within_budget(actual, hi, lows)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("case", one_of_each(LAYERS, lambda case: case.code), ids=str)
def test_fused_layer_is_the_two_one_after_the_other(case, kind):
    layer, following, x = build(case), pixel_map(kind, case.kind.dims), images(case.kind.dims)
    check(fuse(layer, following)(x), layer, following, x, FORMULAS[case.encoding])


FACTORED, MERGED = LayerCase("quadratic", options={"head_width": 2}), LayerCase("quadratic")


@pytest.mark.parametrize("case", [MERGED, FACTORED], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_fused_layer_is_right_in_every_dtype(case, dtype):
    layer, following, x = (
        build(case, dtype=dtype),
        pixel_map("linear", 2, dtype=dtype),
        images(2, dtype),
    )
    check(fuse(layer, following)(x), layer, following, x, FORMULAS["quadratic"])


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_either_bias_may_be_missing(before, after):
    layer, following, x = build(MERGED, bias=before), pixel_map("linear", 2, bias=after), images(2)
    fused = fuse(layer, following)
    assert (fused.bias is not None) == (before or after)
    check(fused(x), layer, following, x, FORMULAS["quadratic"])


@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"padding": 1, "padding_mode": "reflect"},
        {"input_dilation": 2},
    ],
    ids=str,
)
def test_the_map_follows_whatever_the_grid(geometry):
    layer, following, x = build(MERGED, **geometry), pixel_map("convolution", 2), images(2)
    check(fuse(layer, following)(x), layer, following, x, FORMULAS["quadratic"])


FAULTS = {
    "values in half precision": lambda fused: fused.values.weight.copy_(fused.values.weight.half()),
    "heads exchanged": lambda fused: fused.values.weight.copy_(fused.values.weight.flip(0)),
    "bias of the first left out": lambda fused: fused.bias.copy_(pixel_map("linear", 2).bias),
    "bias of the second left out": lambda fused: fused.bias.sub_(pixel_map("linear", 2).bias),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_fusion_is_rejected(fault):
    """Negative control."""
    layer, following, x = build(MERGED), pixel_map("linear", 2), images(2)
    fused = fuse(layer, following)
    check(fused(x), layer, following, x, FORMULAS["quadratic"])
    with torch.no_grad():
        fault(fused)
    with pytest.raises(AssertionError, match="result: error"):
        check(fused(x), layer, following, x, FORMULAS["quadratic"])


@pytest.mark.parametrize("case", [*LAYERS[-8:], MERGED, FACTORED], ids=str)
def test_scores_stay_and_nothing_is_shared(case):
    layer, following, x = build(case), pixel_map("linear", case.kind.dims), images(case.kind.dims)
    kept = [
        {name: tensor.clone() for name, tensor in m.state_dict().items()}
        for m in (layer, following)
    ]
    drawn = torch.get_rng_state()
    fused = fuse(layer, following)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert type(fused) is type(layer)
    assert torch.equal(fused.attention(x), layer.attention(x))
    assert {**fused.options(), "out_channels": 5} == layer.options()
    assert fused.out_channels == 11
    for module, before in zip((layer, following), kept, strict=True):
        assert all(
            torch.equal(before[name], tensor) for name, tensor in module.state_dict().items()
        )
        theirs = {parameter.data_ptr() for parameter in module.parameters()}
        assert not theirs & {parameter.data_ptr() for parameter in fused.parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_merged_numbers_are_rounded_once(dtype):
    layer, following = build(MERGED, dtype=dtype), pixel_map("linear", 2, dtype=dtype)
    fused, weight = fuse(layer, following), following.weight.double()
    exact = torch.stack([weight @ matrix for matrix in layer.values.weight.double()])
    bias = following.bias.double() + weight @ layer.bias.double()
    for found, expected in ((fused.values.weight, exact), (fused.bias, bias)):
        # sums in float64 may differ in their last digits, and so fall on two sides of a midpoint: one unit, not more
        assert ((found - expected).abs() <= torch.finfo(dtype).eps * expected.abs()).all()
        assert (found == expected.to(dtype)).float().mean() > 0.99


def test_factored_values_keep_their_width():
    layer, following = build(FACTORED), pixel_map("linear", 2)
    fused = fuse(layer, following)
    assert fused.values.output.shape == (2, 11, 2)
    assert torch.equal(fused.values.value, layer.values.value)


def test_fused_layers_are_layers_like_others(tmp_path):
    layer, x = fuse(build(FACTORED), pixel_map("linear", 2)), images(2)
    assert torch.equal(load_layer(save_layer(layer, tmp_path / "fused")).eval()(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert "3, 11, num_heads=2, head_width=2" in repr(layer)
    other = fuse(layer, nn.Conv2d(11, 2, 1, padding="same"))
    assert other(x).shape == (2, 2, 5, 7)


def test_dropout_of_weights_commutes_with_the_map():
    torch.manual_seed(3)
    layer = RelativeAttention2d(3, 5, 2, "quadratic", dropout=0.5).double()
    following, x = pixel_map("convolution", 2, dtype=torch.float64), images(2, torch.float64)
    fused = fuse(layer, following)
    assert fused.training
    torch.manual_seed(0)
    y = fused(x)
    torch.manual_seed(0)
    expected = following(layer(x))
    assert (y - fused.eval()(x)).abs().max() > 0.01
    assert (y - expected).abs().max() <= 100 * torch.finfo(torch.float64).eps * expected.abs().max()


def test_frozen_parameters_stay_frozen():
    layer, following = (
        build(MERGED).requires_grad_(False),
        pixel_map("linear", 2).requires_grad_(False),
    )
    assert not any(parameter.requires_grad for parameter in fuse(layer, following).parameters())
    following.bias.requires_grad_()
    learned = {
        name
        for name, parameter in fuse(layer, following).named_parameters()
        if parameter.requires_grad
    }
    assert learned == {"bias"}


@pytest.mark.parametrize(
    ("following", "error", "message"), WRONG_MAPS, ids=lambda value: str(value)[:60]
)
def test_other_maps_are_refused(following, error, message):
    with pytest.raises(error, match=message):
        fuse(build(MERGED), following)


def test_axes_of_the_convolution_are_those_of_the_layer():
    layer = RelativeAttention1d(3, 5, 2, "quadratic")
    assert fuse(layer, nn.Conv1d(5, 2, 1))(torch.zeros(1, 3, 7)).shape == (1, 2, 7)
    with pytest.raises(
        UnsupportedModelError,
        match="cannot fuse Conv2d with RelativeAttention1d: known are Linear and",
    ):
        fuse(layer, nn.Conv2d(5, 2, 1))


@pytest.mark.parametrize("head_width", [None, 3])
def test_layers_with_groups_are_refused(head_width):
    layer = RelativeAttention2d(4, 6, 2, "quadratic", groups=2, head_width=head_width)
    message = (
        "cannot fuse a layer with groups=2: joined with a map of all channels, its matrices would not be block-diagonal"
        " but 2 times as large; keep the two apart"
    )
    with pytest.raises(ConversionError, match=message):
        fuse(layer, nn.Linear(6, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hooked, "cannot fuse RelativeAttention2d: it has forward hooks, as in pruning"),
        (
            lambda layer: prune.random_unstructured(layer.values, "weight", 0.5),
            "cannot fuse MergedValues: it has forward hooks, as in pruning",
        ),
        (
            lambda layer: setattr(layer, "values", nn.Linear(3, 5)),
            "cannot fuse into values of type Linear: known are MergedValues and FactoredValues",
        ),
    ],
    ids=["hooked", "pruned", "other values"],
)
def test_changed_layers_are_refused(change, message):
    layer = build(MERGED)
    change(layer)
    with pytest.raises(UnsupportedModelError, match=message):
        fuse(layer, nn.Linear(5, 2))


def test_other_layers_are_refused(without_type_checks):
    class Doubled(RelativeAttention2d):  # type: ignore[misc]
        def forward(self, x):
            return 2 * super().forward(x)

    for other in (nn.Conv2d(3, 5, 1), Doubled(3, 5, 2, "quadratic")):
        with pytest.raises(
            UnsupportedModelError,
            match=f"fuse into {type(other).__name__}: known are RelativeAttention1d",
        ):
            fuse(other, nn.Linear(5, 2))


@pytest.mark.parametrize("part", ["values", "bias"])
def test_numbers_out_of_range_are_refused(part):
    layer, following = (
        build(MERGED, dtype=torch.float16),
        pixel_map("linear", 2, dtype=torch.float16),
    )
    with torch.no_grad():
        following.weight.fill_(1000)
        (layer.bias if part == "bias" else layer.values.weight).fill_(1000)
    with pytest.raises(
        ConversionError,
        match=f"cannot fuse: the merged {part} would not be finite in torch.float16",
    ):
        fuse(layer, following)
