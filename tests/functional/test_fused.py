"""Attention by torch's fused kernel, and in pieces: the definition with all gradients, and nothing large is kept."""

import copy
import importlib
import inspect
import math
from itertools import product

import pytest
import torch
from tests.functional.alive import Alive
from tests.testing.dense import as_dtype
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from convattn.budget import Sums, assert_within_budget, roundings
from convattn.encodings import (
    Distance,
    GeneralizedQuadratic,
    LearnedAxial,
    LearnedTable,
    Quadratic,
    Shift,
)
from convattn.errors import ShapeError
from convattn.functional import fourier, separable, torch_modes
from convattn.functional.content import OneHot
from convattn.functional.path import Heads
from convattn.functional.plan import WAYS
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

MODULE = importlib.import_module("convattn.functional.fused")


NARROW = Content(key_width=3)
APART = Content(key_width=3, position=False)
UNPLACED = {"content": Content(key_width=8, position=False), "gate": "sigmoid"}
"""Options of a layer whose content has no scores of displacements, and goes to the kernel as it is."""

STRIDES = {"kernel_size": 3, "stride": 2, "padding": 1}
torch.manual_seed(0)  # whatever was drawn as other files were read
TABLE = LearnedAxial(2, 2, extent=16, width=3)

CONTENTS = {
    "a sum over axes": ("quadratic", (5, 7), {}),
    "a sum of tables": (TABLE, (5, 7), {}),
    "a sum over axes of a volume": ("quadratic", (2, 3, 4), {}),
    "a sum over strides": ("sinusoidal", (7, 5), STRIDES),
    "one row": ("quadratic", (1, 9), {}),
    "a mask of each image": ("distance", (5, 3), {}),
    "a mask of strides": ("generalized_quadratic", (7, 5), STRIDES),
    "a mask of a volume": ("generalized_quadratic", (2, 3, 4), {}),
    "a mask": ("learned_table", (5, 3), {}),
    "a mask of a sequence": ("learned_table", (11,), {}),
    "groups": ("learned_table", (5, 3), {"groups": 2}),
    "one pixel": ("generalized_quadratic", (1, 1), {}),
    "shifts": (Shift(2, 2, displacements=[[0, 1], [-2, 0]]), (5, 3), {}),
    "a query bias": ("distance", (5, 3), {"content": Content(query_bias=True, content_bias=False)}),
    "a gate": ("generalized_quadratic", (5, 3), {"gate": "sigmoid"}),
    "a gate of content alone": ("distance", (5, 3), {"content": APART, "gate": "sigmoid"}),
    "wide values": ("quadratic", (5, 3), {"content": APART, "head_width": 2}),
}
"""Encodings, sizes and options of layers whose content has channels or a mask beside it."""

LAYERS = (RelativeAttention1d, RelativeAttention2d, RelativeAttention3d)


def made(impl, case=CONTENTS["a sum of tables"], **options):
    torch.manual_seed(0)
    encoding, spatial, given = case
    given = {"content": NARROW, **given, **options, "encoding": copy.deepcopy(encoding)}
    return LAYERS[len(spatial) - 1](4, 6, num_heads=2, impl=impl, **given)


def results(layer, x):
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], upstream_of(y))]


def upstream_of(y):
    return torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)


def terms_of_gradients(layer, x):
    """Each gradient is a sum of what every query of every image gives."""
    x = x.detach().requires_grad_()
    y = layer(x)
    queries = y[:, 0].numel()
    each = torch.eye(queries, dtype=y.dtype).view(queries, len(y), 1, *y.shape[2:]) * upstream_of(y)
    found = torch.autograd.grad(y, [x, *layer.parameters()], each, is_grads_batched=True)
    return [Sums(queries, gradient.abs().sum(0)) for gradient in found]


def expected_of(reference, x):
    """What each result must be: in float64, what its gradient is a sum of, and with several roundings."""
    exact = as_dtype(reference, torch.float64)
    highs, terms = results(exact, x.double()), [None, *terms_of_gradients(exact, x.double())]
    return list(zip(highs, terms, zip(*roundings(results, reference, x), strict=True), strict=True))


def check(layer, x, expected=None):
    expected = expected or expected_of(made("reference", content=layer.content_terms), x)
    for actual, (hi, sums, lows) in zip(results(layer, x), expected, strict=True):
        assert_within_budget(actual, hi, lows, sums=sums)


def check_without_gradients(y, expected):
    hi, sums, lows = expected[0]
    assert_within_budget(y, hi, lows, sums=sums)


@pytest.mark.parametrize("case", CONTENTS.values(), ids=CONTENTS)
def test_queries_at_a_time_are_the_reference_with_all_gradients(case, monkeypatch):
    x = torch.randn(3, 4, *case[1])
    expected = expected_of(made("reference", case), x)
    for budget in (1, 3000):
        monkeypatch.setattr(torch_modes, "PIECE_BYTES", budget)
        monkeypatch.setattr(MODULE, "KEPT_BYTES", budget)
        layer = made("content", case)
        check(layer, x, expected)
        with torch.no_grad():
            check_without_gradients(layer(x), expected)


@pytest.mark.parametrize("name", ["content.key.weight", "content.query.weight", "encoding.centres"])
def test_vmap_maps_over_one_parameter_without_gradients(name):
    case = CONTENTS["a sum over axes"]
    layer = made("content", case)
    x = torch.randn(2, 4, 5, 7)
    several = torch.stack([scale * layer.get_parameter(name) for scale in (0.5, 1.0, 2.0)])

    def output(value):
        return torch.func.functional_call(layer, {name: value}, (x,))

    with torch.no_grad():
        found = torch.vmap(output)(several)
    for y, value in zip(found, several, strict=True):
        reference = made("reference", case)
        reference.get_parameter(name).data.copy_(value)
        check_without_gradients(y, expected_of(reference, x))


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.bytes = max(self.bytes, made.numel() * made.element_size())
        return made


def largest(layer, x):
    with Largest() as met, torch.set_grad_enabled(x.requires_grad):
        y = layer(x)
        if x.requires_grad:
            y.sum().backward()
    return met.bytes


def test_a_step_takes_little_more_memory_with_many_heads(monkeypatch):
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(MODULE, "KEPT_BYTES", 1)
    x = torch.randn(1, 4, 32, 32, requires_grad=True)
    most = []
    for heads in (2, 16):
        content = Content(key_width=2)
        layer = RelativeAttention2d(4, 4, num_heads=heads, head_width=2, content=content)
        with Alive() as met:
            layer(x).sum().backward()
        most.append(met.most)
    assert most[1] < 2 * most[0]


def test_a_forward_holds_each_query_key_and_value_once_more_and_weights_in_place_of_scores():
    """It held 14.7 MiB; each page that is new to the process takes time, and glibc gives pages back after a call."""
    layer = RelativeAttention2d(192, 192, num_heads=6, head_width=32, content=True)
    images = torch.randn(1, 192, 38, 38)
    with Alive() as met, torch.no_grad():
        layer(images)
    assert met.most <= 12 << 20


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("kind", "spatial", "encoding"),
    [
        (RelativeAttention2d, (16, 16), LearnedAxial(2, 2, extent=16)),
        (RelativeAttention2d, (16, 16), GeneralizedQuadratic(2, 2)),
        (RelativeAttention2d, (16, 16), LearnedTable(2, 2, extent=16)),
        (RelativeAttention1d, (256,), LearnedTable(2, 1, extent=256)),
    ],
)
def test_a_mask_that_does_not_fit_is_computed_in_pieces_that_do(
    kind, spatial, encoding, gradients, monkeypatch
):
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1 << 17)
    layer = kind(4, 5, num_heads=2, encoding=encoding, content=NARROW)
    whole = 2 * 256 * 256 * 4
    assert (
        largest(layer, torch.randn(1, 4, *spatial, requires_grad=gradients)) <= 1 << 17 < whole / 3
    )


@pytest.fixture
def channels(monkeypatch):
    """As on a GPU: scores reach the kernel as channels."""
    module = importlib.import_module("convattn.functional.plan")
    monkeypatch.setattr(module, "fastest_form", lambda heads, axes, _: OneHot(heads, axes))


@pytest.mark.parametrize("gate", [None, "sigmoid"])
@pytest.mark.parametrize("encoding", ["quadratic", "sinusoidal", "linear_distance"])
def test_channels_are_the_reference_with_all_gradients(encoding, gate, channels):
    case, x = (encoding, (5, 7), {"gate": gate}), torch.randn(3, 4, 5, 7)
    check(made("content", case), x, expected_of(made("reference", case), x))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("gate", [None, "sigmoid"])
def test_channels_need_no_weights_of_every_pair(gate, gradients, channels):
    layer, x = made("content", gate=gate), torch.randn(3, 4, 16, 16, requires_grad=gradients)
    width = 3 + 16 + 16 + 1  # a multiple of four
    assert largest(layer, x) <= 3 * 2 * 256 * width * 4 < 3 * 2 * 256 * 256 * 4


@pytest.mark.parametrize(
    "content", [Content(key_width=64, query_bias=True, key_bias=True), Content(key_width=1)]
)
def test_heads_of_every_width_are_the_reference(content):
    check(made("content", content=content), torch.randn(3, 4, 5, 7))


def test_a_query_that_forgets_its_channels_is_noticed(channels, monkeypatch):
    """Negative control: without the content-position term the check fails."""
    module = importlib.import_module("convattn.functional.content")
    right = module.feature_channels
    monkeypatch.setattr(module, "feature_channels", lambda *args: 0 * right(*args))
    with pytest.raises(AssertionError, match="result: error"):
        check(made("content"), torch.randn(3, 4, 5, 7))


@pytest.mark.parametrize("options", [{}, UNPLACED], ids=["a mask", "the kernel"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_layer_changes_no_gradient(reentrant, options):
    layer, x = made("content", **options), torch.randn(3, 4, 5, 7)
    expected = expected_of(made("reference", **options), x)

    def around(images):
        return checkpoint(layer, images, use_reentrant=reentrant)

    images = x.clone().requires_grad_()
    y = around(images)
    y.backward(upstream_of(y))
    found = [y.detach(), images.grad, *(number.grad for number in layer.parameters())]
    for actual, (hi, sums, lows) in zip(found, expected, strict=True):
        assert_within_budget(actual, hi, lows, sums=sums)


@pytest.mark.parametrize("options", [{}, UNPLACED], ids=["a mask", "the kernel"])
def test_a_backward_pass_frees_what_the_kernel_kept(options):
    layer, x = made("content", **options), torch.randn(3, 4, 5, 7)
    y = layer(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()
    again = layer(x).sum()
    again.backward(retain_graph=True)
    again.backward()


def saved_bytes(layer, x):
    memory = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    assert y.requires_grad
    return sum(memory.values())


@pytest.mark.parametrize("encoding", [LearnedAxial(2, 2, extent=24, width=3), LearnedTable(2, 2)])
def test_many_weights_are_not_kept_for_the_backward_pass(encoding, monkeypatch):
    layer = RelativeAttention2d(4, 5, num_heads=2, encoding=encoding, content=NARROW)
    x = torch.randn(2, 4, 24, 24)
    weights = 2 * 2 * 24**4 * 4
    monkeypatch.setattr(MODULE, "KEPT_BYTES", weights - 1)
    assert saved_bytes(layer, x) < weights / 2
    monkeypatch.setattr(MODULE, "KEPT_BYTES", weights)
    assert saved_bytes(layer, x) > weights
    layer.impl = "reference"
    assert saved_bytes(layer, x) > weights


@pytest.mark.parametrize("pieces", [900, 1 << 22], ids=["pieces", "one piece"])
@pytest.mark.parametrize("encoding", ["learned_axial", "distance"])
def test_gradients_drop_the_weights_that_the_output_drops(encoding, pieces, monkeypatch):
    """Computed again, or with a graph of the gradient, they are those of weights that torch kept."""
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", pieces)
    layer = RelativeAttention2d(
        4, 5, num_heads=2, encoding=encoding, content=NARROW, dropout=0.4, dtype=torch.float64
    ).train()
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    found = []
    monkeypatch.setattr(MODULE, "KEPT_BYTES", 0)
    kept = (lambda compute, **_: compute, MODULE.computed_again)
    for again, further in product(kept, (True, False)):
        monkeypatch.setattr(MODULE, "computed_again", again)
        torch.manual_seed(7)
        y = layer(x)
        torch.rand(3)  # later draws are others
        gradients = torch.autograd.grad(y, inputs, upstream_of(y), create_graph=further)
        found.append([y, *gradients])
    for of_torch, *others in zip(*found, strict=True):
        limit = 1000 * torch.finfo(torch.float64).eps * of_torch.abs().max()
        for other in others:
            assert (other - of_torch).abs().max() <= limit


@pytest.mark.parametrize("kept", [0, 1 << 26])
def test_the_same_weights_are_dropped_without_gradients(kept, monkeypatch):
    """As a checkpoint needs that computes without gradients first."""
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 900)
    monkeypatch.setattr(MODULE, "KEPT_BYTES", kept)
    layer = made("content", dropout=0.4).train()
    x = torch.randn(2, 4, 5, 7)
    torch.manual_seed(7)
    with torch.no_grad():
        without = layer(x)
    torch.manual_seed(7)
    assert (layer(x) - without).abs().max() <= 1000 * torch.finfo(x.dtype).eps * without.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "dropout"), [(7, 0.0), (3, 0.5)])
@pytest.mark.parametrize("heads", [1, 2])
def test_explicit_weights_mix_values_of_few_digits(dtype, width, dropout, heads):
    query, key = torch.randn(2, 1, 2, 5, 3, dtype=dtype)
    value = torch.ones(1, heads, 5, width, dtype=dtype)
    y = MODULE.fused_attention(query, key, value, dropout=dropout)
    assert y.dtype == dtype
    assert y.shape == (1, 2, 5, width)
    if not dropout:
        assert (y - 1).abs().max() <= 5 * torch.finfo(dtype).eps


def test_keys_that_fit_neither_queries_nor_values_are_refused():
    attend = inspect.unwrap(MODULE.fused_attention)  # users have no type checks of shapes
    query = torch.randn(1, 2, 5, 3)
    with pytest.raises(ShapeError, match=r"key\.shape\[-1\] must be 3, but is 4"):
        attend(query, torch.randn(1, 2, 5, 4), query)
    with pytest.raises(ShapeError, match=r"value\.shape\[2\] must be 5, but is 4"):
        attend(query, query, query[:, :, :4])


def subnormal(numbers):
    return int(((numbers != 0) & (numbers.abs() < torch.finfo(numbers.dtype).tiny)).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_subnormal_and_what_is_left_out_is_below_rounding(dtype):
    """An Intel core multiplies subnormal numbers a hundred times as slowly."""
    weigh = MODULE.normal_weights
    spread = torch.linspace(0, -1.2 * math.log(torch.finfo(dtype).tiny), 997)
    scores = -spread.to(dtype) + torch.randn(5, 1, dtype=dtype)
    plain, cut = torch.softmax(scores, -1), weigh(scores)
    assert subnormal(plain) > 0
    assert subnormal(cut) == 0
    assert cut[cut > 0].min() ** 2 >= torch.finfo(dtype).tiny
    assert (cut - plain).abs().max() <= torch.finfo(dtype).eps ** 2
    far = torch.full((1, 7), -1e30, dtype=dtype)
    assert (weigh(far) - 1 / 7).abs().max() <= torch.finfo(dtype).eps
    assert weigh(torch.full((1, 3), torch.nan, dtype=dtype)).isnan().all()
    assert weigh(torch.zeros(0, 3, 5, dtype=dtype)).shape == (0, 3, 5)


@pytest.mark.parametrize("farthest", [1, 2, 40])
def test_where_nothing_is_cut_weights_are_the_softmax_bit_by_bit(farthest):
    scores = farthest * torch.rand(3, 5, 7)
    weights = torch.softmax(scores, -1)
    assert torch.equal(MODULE.normal_weights(scores), weights)
    with torch.no_grad():
        assert torch.equal(MODULE.normal_weights(scores, owned=True), weights)


class Subnormal(TorchDispatchMode):
    """Counts the subnormal numbers that operations write; views and fresh memory are no numbers yet."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        reads = func.is_view or "empty" in str(func) or "view" in str(func)
        if isinstance(made, torch.Tensor) and made.is_floating_point() and not reads:
            self.count += subnormal(made)
        return made


@pytest.mark.parametrize("encoding", ["quadratic", "learned_axial", "distance", "learned_table"])
def test_no_number_of_a_call_or_of_its_gradient_is_subnormal(encoding):
    for impl, scale in product(WAYS, (0.05, 1.0, 10.0, 200.0)):
        torch.manual_seed(0)
        content = NARROW if impl == "content" else False
        options = {"num_heads": 2, "encoding": encoding, "content": content}
        layer, x = RelativeAttention2d(4, 5, **options), torch.randn(1, 4, 16, 16)
        refused = WAYS[impl].refuses(Heads(layer.encoding, layer.content))
        if refused or impl in ("reference", "shift"):
            continue
        layer.impl = impl
        with torch.no_grad():
            for parameter in layer.encoding.parameters():
                parameter.mul_(scale)
        with Subnormal() as met:
            layer(x.requires_grad_()).square().sum().backward()
        assert met.count == 0, (impl, scale)


def far_outside():
    encoding = GeneralizedQuadratic(4, 2)
    with torch.no_grad():
        encoding.centres[0] = 80
    return encoding


HUNGRY = {
    "a head far outside the image": (far_outside, {"impl": "fourier"}, torch.float32, "fourier"),
    "all queries weak": (
        lambda: Distance(4, 2, hidden=4),
        {"impl": "fourier"},
        torch.float64,
        "dense",
    ),
    "dropout": (lambda: "quadratic", {"dropout": 0.1}, torch.float32, "dense"),
    "dropout of narrow heads": (
        lambda: Distance(4, 2, hidden=4),
        {"dropout": 0.1, "head_width": 1},
        torch.float32,
        "dense",
    ),
    "dropout beside content": (
        lambda: "quadratic",
        {"dropout": 0.1, "gate": "sigmoid"},
        torch.float32,
        "content",
    ),
}


@pytest.mark.parametrize(("encoding", "options", "dtype", "path"), HUNGRY.values(), ids=HUNGRY)
def test_no_path_holds_the_weights_of_a_large_call(encoding, options, dtype, path, monkeypatch):
    """What is 64 MiB and 4 MiB in use is 128 KiB and 64 KiB here."""
    for name in ("fourier", "fused", "path"):
        module = importlib.import_module(f"convattn.functional.{name}")
        monkeypatch.setattr(module, "KEPT_BYTES", 1 << 17)
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(fourier, "_WEIGHTS", 1 << 14)
    monkeypatch.setattr(fourier, "_CHANNEL_BYTES", 1 << 16)
    layer = RelativeAttention2d(16, 5, num_heads=4, encoding=encoding(), **options).to(dtype)
    x = torch.randn(1, 16, 20, 20, dtype=dtype, requires_grad=True)
    assert layer.plan(x.shape).path == path
    whole = 4 * 400 * 400 * x.element_size()
    assert largest(layer, x) <= 1 << 18 < whole / 4
    assert saved_bytes(layer, x) <= 1 << 20 < whole


def test_a_long_sequence_on_which_all_pairs_count_is_taken_in_pieces(monkeypatch):
    """In float64, where transforms would lose digits; wide heads leave nothing to cut off."""
    wide = Quadratic(2, 1, centres=[[0.0], [3.0]], sharpness=1e-7)
    layer = RelativeAttention1d(4, 6, num_heads=2, encoding=wide).double()
    x = torch.randn(2, 4, 41, dtype=torch.float64)
    reference = copy.deepcopy(layer)
    reference.impl = "reference"
    assert layer.plan(x.shape).path == "separable"
    monkeypatch.setattr(importlib.import_module("convattn.functional.path"), "KEPT_BYTES", 0)
    plan = layer.plan(x.shape)
    assert (plan.path, "some queries at a time" in plan.reason) == ("dense", True)
    check(layer, x, expected_of(reference, x))


@pytest.mark.parametrize("options", [{}, {"head_width": 2}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("encoding", ["quadratic", "distance"])
def test_weights_of_some_queries_at_a_time_are_the_reference(encoding, options, monkeypatch):
    """Without content; the images of a batch share them."""
    case = (encoding, (5, 7), {"content": False, **STRIDES, "padding": 2, **options})
    layer, reference, x = made("dense", case), made("reference", case), torch.randn(3, 4, 5, 7)
    expected = expected_of(reference, x)
    monkeypatch.setattr(importlib.import_module("convattn.functional.path"), "KEPT_BYTES", 0)
    monkeypatch.setattr(separable, "OWN_CHANNELS", 0)
    for pieces in (1, 3000):
        monkeypatch.setattr(torch_modes, "PIECE_BYTES", pieces)
        assert "some queries at a time" in layer.plan(x.shape).reason
        check(layer, x, expected)
        assert layer(x[:0]).shape == reference(x[:0]).shape
