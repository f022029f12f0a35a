from dataclasses import replace

import pytest
import torch
from tests.layers.layer_cases import (
    HARD,
    LAYERS,
    VALUES_FIRST,
    CaseContract,
    LayerCase,
    one_of_each,
)
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from convattn.budget import assert_within_budget, references
from convattn.functional import Path, large_products, separable, tiles, torch_modes
from convattn.functional.plan import WAYS
from convattn.layers import (
    Content,
    FrozenAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)


class TestEveryLayer(CaseContract):
    cases = LAYERS

    def test_called_as_a_convolution_by_name_or_on_one_image(self):
        layer, x = self.made(), self.images()
        with torch.no_grad():
            assert torch.equal(layer(input=x), layer(x))
            assert torch.equal(layer(input=x[0]), layer(x[:1])[0])

    def test_device_meta_gives_shapes_and_gradients_without_numbers(self):
        layer, x = self.made(kernel_size=1, stride=2, padding=1), self.images()
        expected, x = layer(x).shape, x.to("meta").requires_grad_()
        y = layer.to("meta")(x)
        y.sum().backward()
        assert (y.shape, y.is_meta) == (expected, True)
        assert x.grad is not None


SOFT = [case for case in LAYERS if case not in HARD]
ONE_HEAD = [
    replace(case, heads=1, note="one head")
    for case in one_of_each(SOFT, lambda case: (case.code, case.encoding == "learned_table"))
]


@pytest.mark.parametrize("case", ONE_HEAD, ids=str)
def test_a_single_head_is_attention_by_definition(case):
    """Its tensors are those of all heads, seen otherwise: nothing may be written over."""
    held = CaseContract()
    held.case = case
    held.test_output_is_attention_by_definition(torch.float32)


class TestValuesFirst(CaseContract):
    """The contract where each head mixes channels of its own, which pays only in layers larger than these."""

    cases = VALUES_FIRST
    test_attention_weights_are_those_of_the_definition = None  # they are those of any order

    @pytest.fixture(autouse=True)
    def _values_first(self, monkeypatch):
        monkeypatch.setattr(separable, "OWN_CHANNELS", 0)


def planned(case):
    contract = CaseContract()
    contract.case = case
    return contract.made().plan(contract.images().shape)


def test_every_path_goes_through_the_contract(monkeypatch):
    """A case that demands a path gets it, and no path is without a case."""
    paths = [(case.options.get("impl", "auto"), planned(case).path) for case in LAYERS]
    assert {path for _, path in paths} == {
        name for name, way in WAYS.items() if issubclass(way, Path)
    }
    assert all(requested in ("auto", path) for requested, path in paths)
    monkeypatch.setattr(separable, "OWN_CHANNELS", 0)
    assert all(planned(case).order == "values" for case in VALUES_FIRST)


@pytest.mark.parametrize(
    "case", [case for case in HARD if case.encoding != "shift"], ids=str
)  # which has no parameters
def test_gradient_of_hard_heads_is_zero_by_definition(case):
    """What the shift path returns for the encoding's parameters is no approximation: nothing is left in float64."""
    contract = CaseContract()
    contract.case = case
    layer = contract.made().double()
    y = contract.dense(layer, contract.images(dtype=torch.float64))
    gradients = torch.autograd.grad(y.square().sum(), list(layer.encoding.parameters()))
    assert not any(gradient.any() for gradient in gradients)


PIECE, LARGER = 260, 700
"""Bytes of a piece: of one head and image in two dimensions, and of four."""

BETWEEN, LAST = 8, 0
"""Channels for each pixel of a line above which channels lie last: more than images here have, and fewer."""

SOFTER, SHARPER = ({"root_sharpness": torch.tensor(roots)} for roots in ([1.0, 3.0], [2.5, 8.0]))
SHAPES = {"shape": torch.tensor([[[2.0, 0.4], [-0.2, 1.8]], [[8.0, 0.1], [0.2, 7.0]]])}
ASIDE = {
    "centres": torch.tensor([[0.4, 4.0, 0.6], [-0.6, -4.0, 0.4]]),
    "root_sharpness": torch.tensor([3.0, 3.2]),
}
PIECEWISE = [
    LayerCase("quadratic", RelativeAttention1d, {"impl": "separable"}, numbers=SOFTER),
    LayerCase("quadratic", RelativeAttention2d, {"impl": "separable"}, numbers=SHARPER),
    LayerCase("quadratic", RelativeAttention3d, {"impl": "separable"}, numbers=ASIDE),
    LayerCase("generalized_quadratic", RelativeAttention2d, {"impl": "dense"}, numbers=SHAPES),
    LayerCase(
        "quadratic", RelativeAttention2d, {"impl": "separable", "head_width": 2}, numbers=SHARPER
    ),
]
"""Heads with bands that are narrower than the image; soft enough for a gradient that rounding leaves some digits of."""


class TestLargeImages(CaseContract):
    """The contract where images are cut into pieces and bands of keys are left out, which small ones are not.

    In place of large images the pieces are made small: few heads and images, and tiles of two queries, or of all,
    wherever a key can be left out. Channels lie between the axes, or last. What is not about how images are cut is held
    against the first pieces alone.
    """

    cases = PIECEWISE
    test_attention_weights_are_those_of_the_definition = None  # which are never cut
    pieces = (
        (PIECE, 2, BETWEEN),
        (LARGER, 100, BETWEEN),
        (PIECE, 100, LAST),
        (LARGER, 2, LAST),
    )

    of_pieces = (
        "test_output_is_attention_by_definition",
        "test_any_geometry_is_attention_by_definition",
        "test_gradients_are_those_of_the_definition",
        "test_small_batches",
        "test_modes_and_earlier_calls_change_nothing",
    )

    @pytest.fixture(autouse=True)
    def _small_pieces(self, request, monkeypatch):
        self.turn = self.pieces.index(request.param)
        make_pieces_small(monkeypatch, *request.param)

    def pytest_generate_tests(self, metafunc):
        super().pytest_generate_tests(metafunc)
        pieces = self.pieces if metafunc.function.__name__ in self.of_pieces else self.pieces[:1]
        metafunc.parametrize("_small_pieces", pieces, ids=str, indirect=True)


def make_pieces_small(monkeypatch, piece=PIECE, queries=2, many=BETWEEN):
    monkeypatch.setattr(tiles, "_MANY", many)
    monkeypatch.setattr(separable, "SMALL_BYTES", -1)
    monkeypatch.setattr(tiles, "_CACHE", piece)
    monkeypatch.setattr(tiles, "_SHORT", queries)
    monkeypatch.setattr(tiles, "_LONG", queries)
    monkeypatch.setattr(tiles, "WORTHWHILE", 1)


@pytest.mark.parametrize("case", PIECEWISE, ids=str)
def test_keys_are_left_out(case, monkeypatch):
    """Otherwise the class above would show nothing."""
    left_out, right = [], tiles.axis_tiles

    def watched(weights, *args):
        cuts = right(weights, *args)
        for cut in cuts:
            left_out.extend(weights.shape[2] - (tile.keys.stop - tile.keys.start) for tile in cut)
        return cuts

    make_pieces_small(monkeypatch)
    monkeypatch.setattr(tiles, "axis_tiles", watched)
    contract = CaseContract()
    contract.case = case
    contract.made()(contract.images())
    assert max(left_out) > 0


def test_where_the_matrices_alone_learn_nothing_else_is_differentiated(monkeypatch):
    make_pieces_small(monkeypatch)
    monkeypatch.setattr(tiles._Means, "backward", None)  # calling it would fail
    contract = CaseContract()
    contract.case = PIECEWISE[1]
    layer = contract.made()
    layer.encoding.requires_grad_(False)
    layer(contract.images()).sum().backward()
    layer.encoding.requires_grad_()
    with pytest.raises(TypeError, match="callable"):
        layer(contract.images()).sum().backward()


def turned(tensor):
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def gradient_of_images(layer, x):
    return torch.autograd.grad(layer(x).square().sum(), x)[0]


def gapped(tensor):
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]] if tensor.ndim > 3 else tensor


@pytest.mark.parametrize("many", [BETWEEN, LAST])
@pytest.mark.parametrize("other", [turned, gapped])
@pytest.mark.parametrize("case", PIECEWISE, ids=str)
def test_what_is_kept_for_gradients_may_come_back_with_other_strides(
    case, other, many, monkeypatch
):
    make_pieces_small(monkeypatch, LARGER, many=many)
    contract = CaseContract()
    contract.case = case
    layer, x = contract.made(), contract.images().requires_grad_()
    hi, lows = references(gradient_of_images, layer, x)
    with saved_tensors_hooks(lambda tensor: tensor, other):
        found = gradient_of_images(layer, x)
    assert_within_budget(found, hi, lows)


CONTENT = LayerCase("learned_axial", options={"content": Content(key_width=3)})
TRANSFORMS = LayerCase("distance", options={"impl": "fourier"})


def traces(test):
    """Marks a test of traces, in which sizes are tensors."""
    for message in ("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:FutureWarning"):
        test = pytest.mark.filterwarnings(message)(test)
    return pytest.mark.usefixtures("without_type_checks")(test)


@traces
@pytest.mark.parametrize("case", [PIECEWISE[1], TRANSFORMS], ids=str)
def test_a_frozen_layer_is_traced(case):
    contract = CaseContract()
    contract.case = case
    layer, x = contract.made().eval(), contract.images()
    with torch.no_grad():
        still = FrozenAttention(layer, [x.shape[2:]])
    traced = torch.jit.trace_module(still, {"forward": torch.cat([x, x])})
    assert_within_budget(traced(x), *references(lambda layer, x: layer(x), layer, x))


@traces
@pytest.mark.parametrize("case", [*PIECEWISE, *VALUES_FIRST, CONTENT, TRANSFORMS], ids=str)
def test_a_trace_computes_another_batch(case, monkeypatch):
    """Tiles are cut for one batch, into memory that a trace cannot differentiate."""
    make_pieces_small(monkeypatch)
    if case in VALUES_FIRST:
        monkeypatch.setattr(separable, "OWN_CHANNELS", 0)
    contract = CaseContract()
    contract.case = case
    layer, x = contract.made(), contract.images()
    traced = torch.jit.trace_module(layer, {"forward": torch.cat([x, x])})
    assert_within_budget(traced(x), *references(lambda layer, x: layer(x), layer, x))


PLANES = [
    case
    for case in PIECEWISE
    if case.kind is not RelativeAttention3d and "head_width" not in case.options
]


class TestInBfloat16(CaseContract):
    """The contract of what computes all heads together in bfloat16, in wider numbers and one image at a time."""

    cases = PLANES
    test_attention_weights_are_those_of_the_definition = None  # of any dtype and path the same

    @pytest.fixture(autouse=True)
    def _one_image_at_a_time(self, monkeypatch):
        compute_together(monkeypatch)
        monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1)
        monkeypatch.setattr(large_products, "_ALIGNED", 1)


def compute_together(monkeypatch):
    monkeypatch.setattr(separable, "SMALL_BYTES", -1)
    monkeypatch.setattr(separable, "product_dtype", lambda _: torch.bfloat16)


@pytest.mark.parametrize("case", PLANES, ids=str)
def test_heads_are_computed_together(case, monkeypatch):
    """Otherwise the class above would show nothing."""
    compute_together(monkeypatch)
    monkeypatch.setattr(large_products, "_compute", None)  # calling it would fail
    contract = CaseContract()
    contract.case = case
    with pytest.raises(TypeError, match="callable"):
        contract.made()(contract.images())


def test_the_pieces_are_pieces(monkeypatch):
    """Negative control of the class above: what it makes small is cut, and what is left out matters."""
    weights = torch.softmax(-((torch.arange(7.0) - torch.arange(7.0)[:, None]) ** 2) * 9, dim=-1)[
        None
    ]
    make_pieces_small(monkeypatch)
    (cut,) = tiles.axis_tiles(weights, torch.finfo(torch.float32).eps / 64, 2, [slice(0, 1)])
    assert [tile.queries for tile in cut] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    assert all(tile.keys.stop - tile.keys.start < 6 for tile in cut)
    contract = TestLargeImages()
    contract.case = PIECEWISE[1]
    right = tiles.axis_tiles
    monkeypatch.setattr(
        tiles,
        "axis_tiles",
        lambda weights, _, *rest, **options: right(weights, 1e-3, *rest, **options),
    )
    with pytest.raises(AssertionError, match="result: error"):
        contract.test_output_is_attention_by_definition(torch.float32)


LAYOUTS = {
    "hard": {"encoding": "shift"},
    "sum over axes": {},
    "sum over axes, explicit": {"impl": "separable"},
    "all pairs": {"encoding": "distance"},
    "transforms": {"encoding": "distance", "impl": "fourier"},
    "definition": {"impl": "reference"},
    "narrow heads": {"head_width": 1},
    "groups": {"groups": 2},
    "content": {"content": True},
    "content and a mask": {"encoding": "distance", "content": True},
    "gate": {"content": True, "gate": "sigmoid"},
}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_outputs_lie_in_memory_as_those_of_a_convolution(options):
    """Code that views an output, or works on channels that lie last, finds what `nn.Conv2d` leaves."""
    conv = nn.Conv2d(4, 6, 3, padding=1)
    layer = RelativeAttention2d(4, 6, 3, padding=1, num_heads=9, **options)
    images = torch.randn(2, 4, 5, 7)
    for gradients in (False, True):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = images.contiguous(memory_format=layout).requires_grad_(gradients)
            assert layer(x).stride() == conv(x).stride(), (gradients, layout)
        x = images.transpose(2, 3).transpose(2, 3)[:, :, ::2].requires_grad_(gradients)
        assert layer(x).is_contiguous()


def gradient_of_input(layer, x):
    """Returns the gradient as what made the images gets it; `x.grad` is laid out anew."""
    y = layer(x)
    return torch.autograd.grad(y, x, torch.randn_like(y))[0]


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_gradients_of_images_lie_in_memory_as_those_of_a_convolution(options):
    """What made the images reads such a gradient in order; batch norm took 26 times as long for another."""
    conv = nn.Conv2d(4, 6, 3, padding=1)
    layer = RelativeAttention2d(4, 6, 3, padding=1, num_heads=9, **options)
    images = torch.randn(2, 4, 5, 7)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = images.contiguous(memory_format=layout).requires_grad_()
        gradient = gradient_of_input(layer, x)
        assert gradient.stride() == gradient_of_input(conv, x).stride(), layout
    x = images.transpose(2, 3).transpose(2, 3)[:, :, ::2].requires_grad_()
    assert gradient_of_input(layer, x).is_contiguous()


@pytest.mark.parametrize("dims", [1, 3])
def test_outputs_of_sequences_and_volumes_lie_so_too(dims):
    kind = {1: (RelativeAttention1d, nn.Conv1d), 3: (RelativeAttention3d, nn.Conv3d)}[dims]
    layer, conv = kind[0](4, 6, num_heads=2), kind[1](4, 6, 1)
    x = torch.randn(2, 4, *(3, 5, 7)[:dims], requires_grad=True)
    assert layer(x).stride() == conv(x).stride()
    assert gradient_of_input(layer, x).stride() == gradient_of_input(conv, x).stride()
    if dims == 3:
        x = x.detach().contiguous(memory_format=torch.channels_last_3d).requires_grad_()
        assert layer(x).is_contiguous(memory_format=torch.channels_last_3d)
        gradient = gradient_of_input(layer, x)
        assert gradient.is_contiguous(memory_format=torch.channels_last_3d)
