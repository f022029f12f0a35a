import numpy as np
import pytest
import torch
from tests.analysis.reference_statistics import reference, reference_convolution, reference_coverage

from convattn.adapters.attention import OUTSIDE, AttentionCall, Layout, global_layout, grouped_layout
from convattn.analysis.measure.convolution import ConvolutionFit
from convattn.analysis.measure.jackknife import jackknife
from convattn.analysis.measure.kernel import KernelFit, fit_weights, shared_out
from convattn.analysis.measure.pairs import make_pairs
from convattn.analysis.measure.sums import sum_heads
from convattn.analysis.statistics import covered, head_statistics
from convattn.errors import UnsupportedModelError

EPS = torch.finfo(torch.float64).eps
NUMBERS = ["spread", "entropy", "effective_positions", "hard_share", "shift_invariance", "content_share", "distance"]
NUMBERS += ["non_locality", "prefix_share"]


def windows(grid, side):
    rows, cols = (torch.arange(0, size, side) for size in grid)
    corners = torch.cartesian_prod(rows, cols)
    inner = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    return corners[:, None] + inner[None]


def masked():
    places = windows((5, 7), 4)  # the last windows reach beyond the grid
    band = ((places[:, :, None] - places[:, None]).abs().sum(-1) < 4) | (places[:, :, None] == places[:, None]).all(-1)
    return grouped_layout((5, 7), places, allowed=band, pattern="shifted windows")


LAYOUTS = {
    "global": global_layout((3, 5)),
    "one class token": global_layout((3, 5), 1),
    "five prefix tokens": global_layout((2, 5), 5),
    "sequence": global_layout((11,)),
    "sequence with a mark": global_layout((7,), 1),
    "reduced keys": global_layout(
        (4, 6), keys=torch.cartesian_prod(torch.tensor([0.5, 2.5]), torch.tensor([1.0, 4.0]))
    ),
    "keys outside": global_layout((2, 3), keys=torch.cartesian_prod(torch.arange(-1, 3), torch.arange(-1, 4)).double()),
    "windows": grouped_layout((6, 4), windows((6, 4), 2), pattern="windows"),
    "shifted windows with padding": masked(),
}


def make_call(layout, images=6, heads=3, seed=0, dtype=torch.float64, signed=False):
    draw = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(
        images, layout.groups, heads, layout.queries.shape[1], layout.keys.shape[1], generator=draw, dtype=torch.float64
    )
    if layout.allowed is not None:
        scores = scores.masked_fill(~layout.allowed[:, None], -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    if signed:
        weights = weights - 0.5 * weights.roll(1, 2)
    return AttentionCall("layer", "Layer", layout, weights.to(dtype), None, None, not signed, 0.0, 0.0)


def whole_maps(call, head):
    """Puts the groups of a call below one another: maps, and positions of queries and keys."""
    layout = call.layout
    groups, queries, keys = layout.groups, layout.queries.shape[1], layout.keys.shape[1]
    maps = np.zeros((len(call.weights), groups * queries, groups * keys))
    allowed = np.zeros((groups * queries, groups * keys), dtype=bool)
    for group in range(groups):
        rows, cols = slice(group * queries, (group + 1) * queries), slice(group * keys, (group + 1) * keys)
        maps[:, rows, cols] = call.weights[:, group, head].double()
        allowed[rows, cols] = True if layout.allowed is None else layout.allowed[group]
    places = torch.where(layout.key_prefix[:, None], torch.nan, layout.keys)
    return maps, layout.query_positions().flatten(0, 1).numpy(), places.flatten(0, 1).numpy(), allowed


def added(call, batches, groups):
    pairs = make_pairs(call.layout, "layer")
    members = torch.arange(len(call.weights)) * groups // len(call.weights)
    total = None
    for numbers in batches:
        part = AttentionCall(
            "layer", "Layer", call.layout, call.weights[numbers], None, None, call.normalised, 0.0, 0.0
        )
        sums = sum_heads(part, pairs, members[numbers], groups)
        total = sums if total is None else total.plus(sums)
    return total, pairs


def statistics(sums, pairs, radius):
    return head_statistics(sums, pairs, KernelFit(), radius)


def within(actual, hi, terms):
    """A sum of n numbers errs by at most n roundings of the sum of their sizes; a quotient of two, by twice that."""
    assert abs(actual - hi) <= 4 * terms * EPS * max(1.0, abs(hi)), (actual, hi)


@pytest.mark.parametrize("signed", [False, True], ids=["", "signed"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_number_is_that_of_whole_maps(layout, signed):
    call = make_call(layout, signed=signed)
    sums, pairs = added(call, [slice(0, 6)], 3)
    heads, _ = statistics(sums, pairs, 2)
    for number, head in enumerate(heads):
        hi = reference(*whole_maps(call, number))
        terms = call.weights[:, :, 0].numel()
        for name in set(NUMBERS) - {"shift_invariance"}:
            within(getattr(head, name).value, hi[name], terms)
        for axis, estimate in enumerate(head.shift):
            within(estimate.value, hi["shift"][axis], terms)
        assert np.abs(np.subtract(head.hard_shift, hi["hard_shift"])).max() < 1e-3
        steps = pairs.displacements[pairs.within(2)].numpy().round(6)
        assert len(steps) == len(head.kernel) == sum(max(map(abs, step)) <= 2 for step in hi["kernel"])
        for step, weight in zip(steps, head.kernel, strict=True):
            within(weight, hi["kernel"][tuple(step)], terms)
        for found, expected in zip(head.prefix_weights, hi["prefix_weights"], strict=False):
            within(found, expected, terms)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_standard_errors_are_those_of_whole_maps_without_each_group(layout):
    call = make_call(layout, images=6, heads=1)
    sums, pairs = added(call, [slice(0, 6)], 3)
    (head,), _ = statistics(sums, pairs, 2)
    maps, *places = whole_maps(call, 0)
    hard = reference(maps, *places)["hard_shift"]
    others = [reference(np.delete(maps, [2 * left, 2 * left + 1], axis=0), *places) for left in range(3)]
    for name in set(NUMBERS) - {"content_share", "hard_share"}:
        hi = jackknife([float(other[name]) for other in others])
        within(getattr(head, name).error, hi, maps.size)
    bias = 2 * (np.mean([other["shift_invariance"] for other in others]) - reference(maps, *places)["shift_invariance"])
    within(head.shift_invariance.value, reference(maps, *places)["shift_invariance"] - bias, maps.size)
    within(head.hard_share.error, jackknife([float(other["kernel"][hard]) for other in others]), maps.size)


@pytest.mark.parametrize("layout", [LAYOUTS["one class token"], LAYOUTS["windows"]])
def test_batches_add_up(layout):
    call = make_call(layout, images=8)
    whole, _ = added(call, [slice(0, 8)], 4)
    parts, _ = added(call, [slice(0, 3), slice(3, 5), slice(5, 8)], 4)
    terms = call.weights[:, :, 0].numel()
    for name in ("by_displacement", "absolute", "squares", "entropies", "prefix", "prefix_maps", "prefix_size"):
        hi, found = getattr(whole, name), getattr(parts, name)
        if hi.numel():
            assert (found - hi).abs().max() <= terms * EPS * hi.abs().max()


def test_variance_over_images_is_unbiased_in_small_batches():
    """In batches of two the mean of many estimates is the variance, and the control without correction is half."""
    call = make_call(LAYOUTS["sequence"], images=400, heads=1)
    batches = [slice(start, start + 2) for start in range(0, 400, 2)]
    sums, pairs = added(call, batches, 10)
    (head,), _ = statistics(sums, pairs, None)
    exact = reference(*whole_maps(call, 0))["content_share"]
    assert abs(head.content_share.value - exact) < 3 * head.content_share.error
    assert abs(head.content_share.value / 2 - exact) > 10 * head.content_share.error


def test_float32_weights_lose_only_their_rounding():
    layout = LAYOUTS["one class token"]
    narrow, wide = make_call(layout, dtype=torch.float32), make_call(layout)
    (found, pairs), (hi, _) = added(narrow, [slice(0, 6)], 3), added(wide, [slice(0, 6)], 3)
    for one, other in zip(statistics(found, pairs, 2)[0], statistics(hi, pairs, 2)[0], strict=True):
        for name in NUMBERS:
            apart = abs(getattr(one, name).value - getattr(other, name).value)
            assert apart <= 64 * torch.finfo(torch.float32).eps * max(1.0, abs(getattr(other, name).value))


def test_hard_heads_are_exact():
    layout = LAYOUTS["keys outside"]
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    weights = (delta == torch.tensor([1.0, -1.0])).all(-1).float().expand(4, 1, 1, -1, -1)
    call = AttentionCall("layer", "Layer", layout, weights, None, None, True, 0.0, 0.0)
    sums, pairs = added(call, [slice(0, 4)], 4)
    (head,), coverage = statistics(sums, pairs, 1)
    assert [estimate.value for estimate in head.shift] == [1.0, -1.0]
    assert (head.hard_share.value, head.hard_share.error, head.hard_shift) == (1.0, 0.0, (1.0, -1.0))
    assert (head.spread.value, head.entropy.value, head.effective_positions.value) == (0.0, 0.0, 1.0)
    assert head.distance.value == head.non_locality.value == pytest.approx(2**0.5, abs=4 * EPS)
    assert (head.shift_invariance.value, head.content_share.value, head.prefix_share.value) == (1.0, 0.0, 0.0)
    assert sorted(head.kernel) == [0.0] * 8 + [1.0]
    assert [estimate.value for estimate in coverage(3)] == [1 / 9, 1 / 9]


def test_weights_that_are_all_alike_explain_nothing():
    layout = LAYOUTS["global"]
    weights = torch.full((4, 1, 2, 15, 15), 1 / 15)
    call = AttentionCall("layer", "Layer", layout, weights, None, None, True, 0.0, 0.0)
    sums, pairs = added(call, [slice(0, 4)], 2)
    for head in statistics(sums, pairs, 1)[0]:
        assert np.isnan(head.shift_invariance.value)
        assert np.isnan(head.content_share.value)
        assert not head.convolutional


def test_one_image_has_no_standard_error():
    call = make_call(LAYOUTS["global"], images=1)
    sums, pairs = added(call, [slice(0, 1)], 1)
    for head in statistics(sums, pairs, 1)[0]:
        assert np.isfinite(head.distance.value)
        assert np.isnan(head.distance.error)
        assert np.isnan(head.content_share.value)


def test_maps_of_prefix_queries_are_means():
    call = make_call(LAYOUTS["five prefix tokens"])
    sums, pairs = added(call, [slice(0, 6)], 2)
    heads, _ = statistics(sums, pairs, 1)
    for number, head in enumerate(heads):
        hi = call.weights[:, 0, number, :5].mean(0)
        assert (torch.tensor(head.prefix_maps, dtype=torch.float64) - hi).abs().max() <= 6 * EPS
        assert sum(head.prefix_maps[0]) == pytest.approx(1.0, abs=15 * EPS)


def test_layouts_without_positions_are_refused():
    layout = Layout("none", (2,), torch.tensor([[-1, OUTSIDE]]), torch.zeros(1, 2, 1), torch.tensor([True, True]), None)
    with pytest.raises(UnsupportedModelError, match=r"^blocks\.0: none of its queries and keys has a position$"):
        make_pairs(layout, "blocks.0")


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("axes", [1, 2])
def test_coverage_is_that_of_linear_assignment(axes, kernel_size):
    draw = torch.Generator().manual_seed(axes)
    for _ in range(50):
        shifts = (4 * torch.rand(7, axes, generator=draw, dtype=torch.float64) - 2) * torch.tensor([1.0, 0.3]).repeat(
            4
        )[:7, None]
        assert covered(shifts, kernel_size).item() == reference_coverage(shifts.numpy(), kernel_size)


@pytest.mark.parametrize(("grid", "kernel_size"), [((5, 4), 3), ((7,), 5), ((3, 5), 1)])
def test_convolution_score_is_that_of_least_squares(grid, kernel_size):
    draw = torch.Generator().manual_seed(0)
    positions = int(np.prod(grid))
    x = torch.randn(60, positions, 3, generator=draw, dtype=torch.float64)
    y = (x + x.roll(1, 1)) @ torch.randn(3, 2, generator=draw, dtype=torch.float64)
    y += torch.randn(y.shape, generator=draw, dtype=torch.float64)
    fit = ConvolutionFit(grid, kernel_size)
    for start in range(0, 40, 10):
        fit.fit(x[start : start + 10], y[start : start + 10])
    for start in range(40, 60, 10):
        fit.score(x[start : start + 10], y[start : start + 10])
    hi = reference_convolution(x[:40].numpy(), y[:40].numpy(), x[40:].numpy(), y[40:].numpy(), grid, kernel_size)
    # The ridge moves the score by far less than the images do.
    assert abs(fit.estimate(10).value - hi) < 0.1 * fit.estimate(10).error
    assert fit.components == 3
    assert fit.images == (40, 20)


def test_convolution_score_knows_a_convolution_and_noise():
    draw = torch.Generator().manual_seed(0)
    conv = torch.nn.Conv2d(4, 6, 3, padding=1)
    images = torch.randn(20, 4, 7, 7, generator=draw)
    with torch.no_grad():
        made = conv(images).flatten(2).mT
    x = images.flatten(2).mT
    for y, low, high in ((made, 1 - 1e-6, 1.0), (torch.randn(made.shape, generator=draw), -1.0, 0.02)):
        fit = ConvolutionFit((7, 7), 3)
        fit.fit(x[:16], y[:16])
        fit.score(x[16:], y[16:])
        assert low <= fit.estimate(4).value <= high


def test_fewer_components_explain_less():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 25, 80, generator=draw) * torch.linspace(2, 0.1, 80)
    y = x @ torch.randn(80, 5, generator=draw)
    fit = ConvolutionFit((5, 5), 3)
    fit.fit(x[:20], y[:20])
    fit.score(x[20:], y[20:])
    assert fit.components == 32
    assert 0.5 < fit.estimate(4).value < 0.99


def by_position(layout, images=8, seed=0, dtype=torch.float64):
    """Heads whose scores are a table of displacements: softmax shares them out at the border."""
    pairs = make_pairs(layout, "layer")
    draw = torch.Generator().manual_seed(seed)
    table = 2 * torch.randn(2, len(pairs.counts) + 1, generator=draw, dtype=torch.float64)
    table[:, -1] = -torch.inf
    made = torch.zeros(layout.groups, 2, layout.queries.shape[1], layout.keys.shape[1], dtype=torch.float64)
    scores = table[:, pairs.bins].movedim(0, 1)
    weights = scores.softmax(-1).nan_to_num(0.0)
    made[:, :, pairs.rows[:, None], pairs.cols[None]] = weights
    call = AttentionCall(
        "layer", "Layer", layout, made.to(dtype).expand(images, -1, -1, -1, -1), None, None, True, 0, 0
    )
    return call, pairs, table[:, :-1].softmax(-1)


@pytest.mark.parametrize("name", ["global", "sequence", "windows", "keys outside", "one class token"])
def test_weights_by_position_are_found_again(name):
    """Their shares are those of softmax, which the mean weight of each displacement is not."""
    call, pairs, table = by_position(LAYOUTS[name])
    sums, _ = added(call, [slice(0, 8)], 4)
    everything = sums.map(lambda part: part.sum(dim=0))
    found = fit_weights(everything, pairs)
    for head in range(2):
        exact, again = (shared_out(weights[head], pairs) for weights in (table, found))
        # Rounds end where displacements get what was measured to 1e-5 of the largest.
        assert (exact - again).abs().max() < 1e-3
    fit = KernelFit()
    fit.score(call, pairs, sums)
    heads, _ = head_statistics(sums, pairs, fit, 1)
    for head in heads:
        assert head.position_score.value > 1 - 1e-5
        assert head.content_share.value < 1e-12
    if name != "keys outside":
        assert max(head.shift_invariance.value for head in heads) < 0.99


def test_position_score_is_that_of_whole_maps():
    """Weights that depend on the image: the share explained, on other images, by the shares of the first."""
    layout = LAYOUTS["global"]
    fitted, held = make_call(layout, seed=0), make_call(layout, seed=1)
    sums, pairs = added(fitted, [slice(0, 6)], 3)
    fit = KernelFit()
    fit.score(held, pairs, sums)
    weights = fit_weights(sums.map(lambda part: part.sum(dim=0)), pairs)
    for head in range(3):
        maps = held.weights[:, 0, head].numpy()
        model = shared_out(weights[head], pairs)[0].numpy()
        hi = 1 - np.square(maps - model).sum() / np.square(maps - 1 / 15).sum()
        within(fit.estimate(head, 10).value, hi, maps.size)
        assert fit.estimate(head, 10).value < 0.1


def test_a_hard_head_at_the_border_leaves_no_weight_in_the_middle():
    """At the last column such a head falls back on its own position, which its kernel must not take for a habit."""
    layout = global_layout((6, 7))
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    weights = (-15 * (delta - torch.tensor([0.0, 1.0])).square().sum(-1)).softmax(-1).expand(4, 1, 1, -1, -1)
    call = AttentionCall("layer", "Layer", layout, weights, None, None, True, 0.0, 0.0)
    sums, pairs = added(call, [slice(0, 4)], 4)
    fit = KernelFit()
    fit.score(call, pairs, sums)
    ((head,), _) = head_statistics(sums, pairs, fit, 1)
    steps = pairs.displacements[pairs.within(1)].tolist()
    assert head.kernel[steps.index([0.0, 0.0])] == pytest.approx(1 / 7, abs=1e-5)
    assert head.position_kernel[steps.index([0.0, 0.0])] < 1e-4
    assert head.position_kernel[steps.index([0.0, 1.0])] > 1 - 1e-4
    assert head.position_score.value > 1 - 1e-6


def test_components_are_no_more_than_the_first_batch_determines():
    fit = ConvolutionFit((3, 3), 3)
    x = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
    fit.fit(x, x)
    assert fit.components == 2 * 9
