"""What heads are called: planted ones of every kind, at the limits too, and random ones."""

from dataclasses import replace
from itertools import product
from math import nan
from types import SimpleNamespace

import pytest
import torch
from tests.heads.statistics_cases import call_of

from convattn.heads.head_report import HEAD_NUMBERS
from convattn.heads.jackknife import Estimate, jackknife
from convattn.heads.layout import global_layout
from convattn.heads.measure import LayerMeasure, layer_statistics
from convattn.heads.verdict import (
    ANYWHERE,
    MEANINGS,
    MIXED,
    RULES,
    HeadVerdict,
    direction,
    headline,
    judge,
)

GRID = (7, 7)
IMAGES = 60
SHIFTS = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))


def displacements():
    cells = torch.cartesian_prod(*(torch.arange(float(size)) for size in GRID))
    return cells[None] - cells[:, None]


def by_displacement(scores):
    """Attention of every query and key from scores of displacements."""
    return scores(*displacements().unbind(-1)).softmax(-1)


def soft(row, col, sharpness):
    return by_displacement(lambda r, c: -sharpness * ((r - row) ** 2 + (c - col) ** 2))


def content(generator, images=IMAGES, sharpness=3.0):
    """Attention that is another one for each image."""
    cells = GRID[0] * GRID[1]
    return (sharpness * torch.randn(images, cells, cells, generator=generator)).softmax(-1)


def half(axis, sign):
    """Everything on one side alike; the last row, or column, has nothing there and looks at itself."""
    return by_displacement(
        lambda r, c: torch.where(sign * (r, c)[axis] > 0, 12.0, 0.0) - 3 * (r**2 + c**2 < 0.5)
    )


def line(axis):
    return by_displacement(lambda r, c: torch.where((r, c)[axis] == 0, 6.0, 0.0))


def mixed_with(attention, share, generator):
    """A head of which some share of the attention is by displacement, and the rest by content."""
    return share * attention + (1 - share) * content(generator)


def measured(maps, grid, prefix):
    """The statistics of heads from maps (images, heads, queries, keys), a fifth of the images held out."""
    call = call_of(global_layout(grid, prefix), maps[:, None].double())
    layer = LayerMeasure(call, 3)
    members = torch.arange(len(maps)) * 10 // len(maps)
    fits = 4 * len(maps) // 5
    for images in (slice(0, fits), slice(fits, None)):
        part = replace(call, weights=call.weights[images])
        layer.add(part, members[images], held_out=images.start > 0)
    return layer_statistics(layer, 0, with_kernels=False).heads


def with_class_token(share, generator):
    """Attention to a class token, which stands first, and by content to the grid."""
    cells = GRID[0] * GRID[1]
    maps = torch.zeros(IMAGES, cells + 1, cells + 1)
    maps[:, 0, 0] = 1.0
    maps[:, 1:, 0] = share
    maps[:, 1:, 1:] = (1 - share) * content(generator)
    return maps


def planted():
    """54 heads of every kind, plainly and on both sides of the limits, with their words."""
    draw = torch.Generator().manual_seed(0)
    heads = []
    for row, col in SHIFTS:
        hard = soft(row, col, 9.0)
        heads.append(("convolution", soft(row, col, 4.0)))
        heads.append(("convolution", mixed_with(hard, 0.97, draw)))
        # At borders the rest is shared out; the query itself is never beyond one.
        heads.append(("neighbour" if row or col else "convolution", mixed_with(hard, 0.7, draw)))
        heads.append(("neighbour", mixed_with(hard, 0.55, draw)))
        heads.append(("mixed", mixed_with(hard, 0.45, draw)))
        heads.append(("window", mixed_with(soft(row, col, 0.35), 0.85, draw)))
    for axis, sign in product((0, 1), (-1, 1)):
        heads.append(("convolution", mixed_with(half(axis, sign), 0.98, draw)))
        heads.append(("half-plane", mixed_with(half(axis, sign), 0.9, draw)))
    for axis, word in enumerate(("row", "column")):
        heads.append(("convolution", mixed_with(line(axis), 0.9, draw)))
        heads.append((word, mixed_with(line(axis), 0.75, draw)))
        heads.append(("content", mixed_with(line(axis), 0.3, draw)))
    heads += [("anywhere", content(draw, sharpness=size)) for size in (0.0, 0.05, 0.1, 0.15)]
    heads += [("content", content(draw, sharpness=size)) for size in (1.5, 2.0, 3.0, 4.0, 5.0, 6.0)]
    return heads


def words_of(maps, grid=GRID, prefix=0):
    """What heads are called that were measured on as many images as there are maps of each."""
    images = len(maps)
    return [judge(head, images).word for head in measured(maps, grid, prefix)]


def test_sixty_planted_heads_are_told_right():
    words, maps = zip(*planted(), strict=True)
    whole = torch.stack([one.expand(IMAGES, -1, -1) for one in maps], dim=1)
    shares = {0.9: "special tokens", 0.6: "special tokens", 0.53: "special tokens"}
    shares |= dict.fromkeys((0.47, 0.3, 0.1), "content")
    draw = torch.Generator().manual_seed(1)
    tokens = torch.stack([with_class_token(share, draw) for share in shares], dim=1)
    found = words_of(whole) + words_of(tokens, prefix=1)
    expected = [*words, *shares.values()]
    wrong = [pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]]
    assert len(expected) == 60
    assert wrong == []
    assert set(expected) == {"line", MIXED, *(rule.word for rule in RULES), "row", "column"} - {
        "line"
    }


def test_no_word_of_position_is_given_by_chance():
    """Of 1,000 random heads, 1 % would be 10; half of them see the images, half of them look at fixed places."""
    grid, images = (4, 4), 20
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(images, 1000, 16, 16, generator=draw)
    scores[:, 500:] = scores[:1, 500:]
    sharpness = torch.linspace(0.5, 5, 1000)[:, None, None]
    words = words_of((sharpness * scores).softmax(-1), grid)
    by_position = {"row", "column", *(rule.word for rule in RULES if rule.place)}
    assert sum(word in by_position for word in words) <= 10
    assert "special tokens" not in words
    assert {"content", MIXED} <= set(words)


def test_a_number_at_its_limit_passes_once_in_a_hundred_times():
    draw = torch.Generator().manual_seed(0)
    groups = torch.randn(20_000, 10, generator=draw)
    means = (groups.sum(1, keepdim=True) - groups) / 9
    errors = (0.9 * (means - means.mean(1, keepdim=True)).square().sum(1)).sqrt()
    passed = 0
    for value, error in zip(groups.mean(1).tolist(), errors.tolist(), strict=True):
        passed += Estimate(value, error).least(10) >= 0
    assert 0.008 < passed / 20_000 < 0.012
    assert abs(errors[0].item() - jackknife(means[0])) < 1e-6


ZERO = Estimate(0.0, 0.0)
PLACES = {
    "hard_shift": (1.0, 0.0),
    "hard_shift_error": (0.0, 0.0),
    "side": (0, -1),
    "line": 0,
    "shift": (ZERO, ZERO),
}


def head(**numbers):
    """A head that keeps no rule, but for some numbers."""
    others = dict.fromkeys(HEAD_NUMBERS, Estimate(0.1, 0.001))
    return SimpleNamespace(**{**others, **PLACES, **numbers})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.word)
def test_errors_count_at_every_limit(rule):
    right = {name: Estimate(limit + 0.029, 0.01) for name, limit in rule.limits.items()}
    near = {name: Estimate(limit + 0.027, 0.01) for name, limit in rule.limits.items()}
    told = {"line": "row"}.get(rule.word, rule.word)
    assert judge(head(**right), 100).word == told
    assert judge(head(**near), 100).word != told
    few = 10 if "position_score" in rule.limits else 3  # two groups of images held out, or three
    assert judge(head(**right), few).word != told


def test_controls_decide():
    near = head(hard_share=Estimate(0.7, 0.01), position_score=Estimate(0.8, 0.01))
    alike = head(hard_share=Estimate(0.3, 0.01), position_score=Estimate(0.45, 0.01))
    away = head(hard_share=Estimate(0.3, 0.01), position_score=Estimate(0.05, 0.01))
    assert judge(near, 100) == HeadVerdict("neighbour", "1 below", (1.0, 0.0), False)
    assert judge(near, 100, shuffled=alike, control_images=50).word == "neighbour"
    assert judge(near, 100, shuffled=away, control_images=50).word == MIXED
    built = judge(near, 100, untrained=near, control_images=50)
    assert str(built) == "neighbour 1 below (by construction)"
    assert not judge(near, 100, untrained=away, control_images=50).by_construction


def test_the_architecture_makes_a_head_only_of_the_same_word_and_place():
    sure = {name: Estimate(0.99, 0.001) for rule in RULES for name in rule.limits}
    elsewhere = {"hard_shift": (0.0, 1.0), "side": (1, 0), "line": 1}
    for rule in (rule for rule in RULES if rule.place):
        numbers = {name: sure[name] for name in rule.limits}
        trained = head(**numbers)
        starts = {
            "alike": (trained, True),
            "elsewhere": (head(**numbers, **elsewhere), False),
            "of another word": (head(content_share=sure["content_share"]), False),
            "everywhere": (head(**numbers, evenness=sure["evenness"]), False),
        }
        for name, (start, built) in starts.items():
            verdict = judge(trained, 100, untrained=start, control_images=50)
            assert verdict.by_construction == built, (rule.word, name)
        assert not judge(trained, 100).by_construction


def test_a_head_that_looks_everywhere_alike_has_no_word_of_position():
    """Of weights that hardly vary, a little is explained by displacement as easily as by anything else."""
    even = head(position_score=Estimate(0.99, 0.001), evenness=Estimate(0.99, 0.001))
    assert str(judge(even, 100)) == "anywhere"


def test_a_window_is_where_most_of_it_is():
    """30 % at the position before, and the mean shift 7 positions after."""
    grid = (41,)
    attention = torch.full((41, 41), 1e-4)
    for query in range(41):
        attention[query, max(query - 1, 0)] = 0.3
        attention[query, query + 1 : query + 23] = 0.7 / 22
    attention /= attention.sum(1, keepdim=True)
    draw = torch.Generator().manual_seed(0)
    maps = attention * (1 + 0.2 * torch.rand(IMAGES, 41, 41, generator=draw))
    (one,) = measured((maps / maps.sum(2, keepdim=True))[:, None], grid, 0)
    assert round(one.shift[0].value) > 3
    limits = {"position_score": Estimate(0.7, 0.01), "nearness": Estimate(0.6, 0.01)}
    places = {
        "1 before": {"hard_shift": one.hard_shift, "hard_shift_error": one.hard_shift_error},
        "": {"hard_shift": one.hard_shift, "hard_shift_error": (0.4,)},
    }
    for place, numbers in places.items():
        verdict = judge(head(**limits, **numbers, shift=one.shift), 100)
        assert (verdict.word, verdict.place) == ("window", place)
    assert judge(head(**limits, hard_shift=(0.0, 0.0)), 100).place == ""


def test_a_head_without_content_is_a_convolution_by_construction():
    unknown = Estimate(nan, nan)
    verdict = judge(head(position_score=unknown), 1, without_content=True)
    assert str(verdict) == "convolution (by construction)"
    words = headline([verdict] * 3, [verdict] * 3)
    assert words == (
        "3 of 3 heads are convolutions, and 3 of 3 with untrained weights: the architecture does it"
    )


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ((0.0, 0.0), "itself"),
        ((-1.0, 2.0), "1 above, 2 right"),
        ((1.5, -1.0), "1.5 below, 1 left"),
        ((-1.0,), "1 before"),
        ((2.0,), "2 after"),
        ((1.0, 0.0, 0.0), "(1.0, 0.0, 0.0)"),
    ],
)
def test_directions_have_names(shift, words):
    assert direction(shift) == words


def test_every_word_has_a_meaning():
    assert {rule.word for rule in RULES} <= MEANINGS.keys()


def test_one_head_is_no_plural():
    words = headline([HeadVerdict(ANYWHERE, "", None, False)], [])
    assert words.startswith("0 of 1 head is a convolution; 1 anywhere")
