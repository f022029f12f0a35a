"""Numbers of the records, and how pages word them: what templates (evidence/templates) may use."""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean as mean
from statistics import median
from typing import Any

import numpy as np

from benchmarks.record import BenchmarkRecord, CaseResult, Spread
from benchmarks.report import fit_exponent
from convattn import load_recipe
from convattn.heads import read_heads
from convattn.lab.paper_table import TABLE1
from convattn.lab.study_record import t_interval
from convattn.layers import RelativeAttention
from convattn.models import AttentionNet
from evidence.certify.__main__ import read_cases
from evidence.real_weights.__main__ import BACK, PLANNED, SOFTMAX
from evidence.sharpness.__main__ import SharpnessCurve
from evidence.speedrun.__main__ import (
    TRAIN_IMAGES,
    attention_on_taps,
    away_from_pixels,
    by_chance,
    drawn,
    network_of,
    sides_of,
    taps_of_all,
    taps_with_a_centre,
)
from evidence.sweep.record import families, read

EVIDENCE = Path(__file__).parent

WAYS = (PLANNED, SOFTMAX, BACK)
"""Conversions of networks with trained weights, in the order of their columns."""

Layers = list[np.ndarray]
"""Centres of the heads of each layer, (row, col) in pixels."""


def record(file: str) -> Any:
    """Reads a JSON file, named from the folder of evidence."""
    return json.loads((EVIDENCE / file).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Study:
    """Finished runs of a folder: the records by network and seed."""

    folder: Path
    runs: dict[str, dict[int, dict[str, Any]]]

    @property
    def seeds(self) -> list[int]:
        """Seeds that all networks have finished."""
        return sorted(set.intersection(*map(set, self.runs.values())))

    def first(self, label: str) -> dict[str, Any]:
        """Returns the record of the first seed."""
        return self.runs[label][self.seeds[0]]

    def accuracy(self, label: str, view: str = "test_accuracy") -> list[float]:
        """Lists test accuracies by seed."""
        return [self.runs[label][seed]["results"][view] for seed in self.seeds]

    def less(self, label: str, baseline: str) -> list[float]:
        """Lists differences of accuracy of the same seed, in points."""
        return less(self.accuracy(label), self.accuracy(baseline))

    def epochs(self, label: str) -> int:
        """Returns the epochs of a network's runs."""
        return int(self.first(label)["recipe"]["training"]["epochs"])

    def centres(self, label: str, seed: int, epochs: Sequence[int]) -> list[Layers]:
        """Returns the centres of a run's heads after some of its epochs."""
        kept = read_heads(self.folder / f"{label}-{seed}")
        steps = [kept[-1].step * epoch // self.epochs(label) for epoch in epochs]
        return [[item.centres for item in kept if item.step == step] for step in steps]


def study(folder: str) -> Study:
    """Reads the records of a folder, whose runs are named NETWORK-SEED."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for file in sorted((EVIDENCE / folder).glob("*/record.json")):
        label, seed = file.parent.name.rsplit("-", 1)
        runs.setdefault(label, {})[int(seed)] = json.loads(file.read_text(encoding="utf-8"))
    return Study(EVIDENCE / folder, runs)


def less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Lists differences of two lists of fractions, in points."""
    return [100 * (a - b) for a, b in zip(one, other, strict=True)]


def signed(value: float, digits: int = 2, plus: str = "") -> str:
    """Writes a number with a true minus, and with `plus` if it is positive."""
    return f"{plus if value > 0 else ''}{value:.{digits}f}".replace("-", "−")


def limits(values: Sequence[float], digits: int = 2) -> str:
    """Words the 95 % t interval of a mean, as in −0.50 to 1.84."""
    low, high = t_interval(values)
    return f"{signed(low, digits)} to {signed(high, digits)}"


def interval(values: Sequence[float], unit: str = "", plus: str = "+", digits: int = 2) -> str:
    """Words a mean and its 95 % t interval, as in +0.67 points (−0.50 to 1.84)."""
    words = signed(mean(values), digits, plus)
    return f"{words}{unit} ({limits(values, digits)})"


def points(values: Sequence[float]) -> str:
    """Words a mean and its 95 % t interval in points."""
    return interval(values, " points")


def resolved(values: Sequence[float], otherwise: str = ": not resolved") -> str:
    """Adds to an interval that it holds 0, if it does."""
    low, high = t_interval(values)
    return "" if low > 0 or high < 0 else otherwise


def listed(items: Iterable[object]) -> str:
    """Writes a list, as in 9, 8 and 9."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}"


def percent(share: float, digits: int = 2) -> str:
    """Writes a fraction in percent, as in 93.55 %."""
    return f"{100 * share:.{digits}f} %"


def tight(share: float, digits: int = 2) -> str:
    """Writes a fraction in percent as tables do, as in 93.55%."""
    return f"{share:.{digits}%}"


def whole(number: float) -> str:
    """Writes a whole number with its thousands."""
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Writes three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def three(number: float) -> str:
    """Writes three digits, without an exponent."""
    return f"{float(f'{number:.3g}'):,g}"


def fixed(number: float, digits: int = 2) -> str:
    """Writes so many digits after the point."""
    return f"{number:,.{digits}f}"


DRAWS = 10_000
"""Draws of centres where runs are taken together; 1,000 elsewhere."""


def chance(
    layers: Layers,
    what: Callable[[Any], np.ndarray] = taps_of_all,
    digits: tuple[int, int] = (1, 0),
    draws: int = 1000,
    draw: Callable[..., Layers] = drawn,
) -> str:
    """Words what centres by chance give: a mean, and the middle 95 %."""
    average, low, high = by_chance(layers, what, draws, draw)
    first, ends = digits
    return f"{average:.{first}f} ({low:.{ends}f} to {high:.{ends}f})"


def as_many_taps(layers: Layers, draw: Callable[[Layers, int], Layers]) -> float:
    """Returns the share of draws with at least as many taps: a one-sided p."""
    return float(np.mean(taps_of_all(draw(layers, DRAWS)) >= taps_of_all(layers)))


def speed(name: str) -> dict[str, CaseResult]:
    """Reads the cases of a record of speed, by name."""
    cases = BenchmarkRecord.load(EVIDENCE / "speed" / f"{name}.json").cases
    return {case.name: case for case in cases}


def seconds(case: CaseResult, contender: str) -> float:
    """Returns the median time of a contender."""
    times = next(item.seconds for item in case.measurements if item.contender == contender)
    return median(times)


def ms(case: CaseResult, contender: str) -> str:
    """Words the median time of a contender."""
    return f"{short(1000 * seconds(case, contender))} ms"


def ratio(case: CaseResult, upper: str, lower: str) -> str:
    """Words the median of the ratios of each round."""
    found: Spread | None = case.ratio(upper, lower)
    return "–" if found is None else short(found.median)


def rounds(case: CaseResult, upper: str, lower: str) -> list[float]:
    """Lists the ratios of all rounds."""
    times = {item.contender: item.seconds for item in case.measurements}
    return [a / b for a, b in zip(times[upper], times[lower], strict=True)]


def medians(cases: Iterable[CaseResult], uppers: Sequence[str], lower: str = "conv") -> list[float]:
    """Lists the median ratios of some contenders to another, over cases."""
    pairs = [(case, upper) for case in cases for upper in uppers]
    return [median(rounds(case, upper, lower)) for case, upper in pairs]


def farthest(cases: Iterable[CaseResult], uppers: Sequence[str], lower: str) -> float:
    """Returns the factor by which the times of one round differ most from equal times."""
    pairs = [(case, upper) for case in cases for upper in uppers]
    ratios = [ratio for case, upper in pairs for ratio in rounds(case, upper, lower)]
    return max(*ratios, 1 / min(ratios))


def growth(small: CaseResult, large: CaseResult, contender: str) -> float:
    """Returns the exponent of time over the number of pixels, between two cases."""
    points = [(case.pixels, seconds(case, contender)) for case in (small, large)]
    return fit_exponent(points) or 0.0


def mebibytes(case: CaseResult, contender: str) -> str:
    """Words the largest memory of a contender's call, in MiB."""
    memory = next(item.extra_memory for item in case.measurements if item.contender == contender)
    return f"{(memory or 0) / 2**20:,.0f}"


def moved_in(study: Study, label: str) -> list[float]:
    """Lists the mean distance that the centres of each layer moved in each run, in pixels."""
    distances = []
    for seed in study.seeds:
        start, end = study.centres(label, seed, [0, study.epochs(label)])
        pairs = zip(start, end, strict=True)
        distances += [float(np.linalg.norm(b - a, axis=1).mean()) for a, b in pairs]
    return distances


def count_by_epoch(study: Study, label: str, epochs: Sequence[int]) -> list[list[int]]:
    """Lists the taps that have a centre in each run, after some epochs."""
    return [at_taps(study, label, epoch) for epoch in epochs]


def paper_gap() -> str:
    """Words the paper's accuracy of the learned encoding less that of the quadratic one, in points."""
    rows = {row.recipe: row.accuracy for row in TABLE1}
    gap = 100 * ((rows["sa-learned"] or 0) - (rows["sa-quadratic"] or 0))
    return signed(gap, 1)


def numbers(study: Study, label: str) -> int:
    """Counts the parameters of the encoding of a layer."""
    model = {**study.first(label)["recipe"]["model"]}
    del model["kind"]
    network = AttentionNet(**model, num_classes=10, image_size=32)
    layers = [module for module in network.modules() if isinstance(module, RelativeAttention)]
    return sum(parameter.numel() for parameter in layers[0].encoding.parameters())


def searched(folder: str, label: str, rates: Sequence[str]) -> list[str]:
    """Words the validation accuracy of a network with each rate of a search, the highest in bold."""
    found = {}
    for file in (EVIDENCE / folder).glob(f"{label}[_-]*/record.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["recipe"]["name"] == label:
            found[content["recipe"]["optim"]["learning_rate"]] = content["results"]
    values = [found.get(float(rate), {}).get("validation_accuracy") for rate in rates]
    best = max(value for value in values if value is not None)
    words = []
    for value in values:
        shown = "not tried" if value is None else percent(value)
        words.append(f"**{shown}**" if value == best else shown)
    return words


def closest(labels: Sequence[str]) -> float:
    """Returns the largest gap between the two best rates in the search of the study of heads, in points."""
    rates: dict[str, list[float]] = {label: [] for label in labels}
    for file in (EVIDENCE / "encodings" / "heads" / "search").glob("*/record.json"):
        label = file.parent.name.split("_")[0]
        if label in rates:
            results = json.loads(file.read_text(encoding="utf-8"))["results"]
            rates[label].append(100 * results["validation_accuracy"])
    best = [sorted(values)[-2:] for values in rates.values()]
    return max(high - low for low, high in best)


def on_taps(folder: Path) -> list[float]:
    """Lists the share of attention on the 3 × 3 taps of each layer at the end of a speed run."""
    kept = read_heads(folder)
    recipe = json.loads((folder / "record.json").read_text(encoding="utf-8"))["recipe"]
    last = [item for item in kept if item.step == kept[-1].step]
    sides = sides_of(network_of(recipe), 32)
    return [
        float(attention_on_taps(item.centres, item.precisions, side).mean())
        for item, side in zip(last, sides, strict=True)
    ]


def shares_on_taps(study: Study, label: str) -> list[str]:
    """Words the share of attention on the 3 × 3 taps of each layer, in percent, for each seed."""
    runs = [on_taps(study.folder / f"{label}-{seed}") for seed in study.seeds]
    return [", ".join(f"{100 * share:.0f}" for share in layers) for layers in runs]


def with_mixing(recipe: Mapping[str, Any], mixing: str) -> dict[str, Any]:
    """Returns the recipe of a speed run with other layers."""
    return {**recipe, "model": {**recipe["model"], "mixing": mixing}}


def first_layers(runs: Iterable[Sequence[int]], count: int) -> list[int]:
    """Sums the counts of the first layers of each run."""
    return [sum(layers[:count]) for layers in runs]


def farthest_moved(folder: Path, layer: int) -> float:
    """Returns the largest distance that a centre of a layer moved in a run, in pixels."""
    kept = [item for item in read_heads(folder) if item.layer == layer]
    return float(np.linalg.norm(kept[-1].centres - kept[0].centres, axis=1).max())


def taps_kept(study: Study, label: str) -> list[list[int]]:
    """Lists the taps that have a centre in each layer at the end of each run."""
    runs = [study.centres(label, seed, [study.epochs(label)])[0] for seed in study.seeds]
    return [[int(taps_with_a_centre(layer)) for layer in layers] for layers in runs]


def at_taps(study: Study, label: str, epoch: int) -> list[int]:
    """Lists the taps that have a centre in each run after an epoch, in all layers together."""
    runs = [study.centres(label, seed, [epoch])[0] for seed in study.seeds]
    return [int(taps_of_all(layers)) for layers in runs]


def expected_taps(study: Study, label: str, epoch: int) -> list[str]:
    """Words the mean number of taps that have a centre by chance, of each run."""
    runs = [study.centres(label, seed, [epoch])[0] for seed in study.seeds]
    return [fixed(by_chance(layers, taps_of_all)[0], 1) for layers in runs]


def away(study: Study, label: str, epoch: int) -> float:
    """Returns the mean distance of a centre to the nearest pixel after an epoch, over runs."""
    runs = [study.centres(label, seed, [epoch])[0] for seed in study.seeds]
    return mean(float(away_from_pixels(layers)) for layers in runs)


def together(study: Study, label: str) -> Layers:
    """Lists the centres of all layers of all runs at their ends."""
    last = [study.epochs(label)]
    runs = [study.centres(label, seed, last)[0] for seed in study.seeds]
    return [layer for layers in runs for layer in layers]


def swept() -> list[dict[str, Any]]:
    """Lists the families of the sweep."""
    return families(read(EVIDENCE / "sweep" / "networks.jsonl"))


def published(recipe: str) -> dict[str, str]:
    """Words the published accuracies of a recipe in percent, and its published size; – where there is none."""
    row = next(row for row in TABLE1 if row.recipe == recipe)
    both = {"paper": row.accuracy, "replication": row.replication}
    words = {name: "–" if one is None else f"{100 * one:.4g}" for name, one in both.items()}
    return {**words, "parameters": row.parameters or "–"}


def conversions(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Groups the rows of converted networks by network and conversion."""
    groups: dict[str, dict[str, Any]] = {}
    for row in content["rows"]:
        groups.setdefault(row["run"].split(":")[-1], {})[row["conversion"]] = row
    return groups


def change(row: Mapping[str, Any]) -> str:
    """Words the accuracy before and after a conversion."""
    return f"{100 * row['accuracy_before']:.2f} to {100 * row['accuracy_after']:.2f} %"


def paid(rows: Mapping[str, Any], padding: str) -> str:
    """Words the points that plain convolutions of a padding lose to attention on the same images."""
    row = rows[padding]
    return fixed(100 * (row["accuracy_of_attention"] - row["accuracy"]))


def on_each_way(task: Mapping[str, Any], network: str) -> list[Mapping[str, Any]]:
    """Lists how a network of a task was converted, on each way."""
    ways = {one["way"]: one["conversions"] for one in task["outcomes"]}
    return [next(row for row in ways[way] if row["network"] == network) for way in WAYS]


def shares(task: Mapping[str, Any], network: str) -> list[str]:
    """Words the errors of a network on each way, in units of their budgets."""
    return [fixed(row["error"] / row["rounding"]) for row in on_each_way(task, network)]


def largest_share(architectures: Iterable[Mapping[str, Any]]) -> float:
    """Returns the largest share of its budget that the error of an attention layer takes."""
    layers = [layer for one in architectures for layer in one["layers"]]
    return max(layer["error"] / layer["budget"] for layer in layers)


def families_of(families: Iterable[Mapping[str, Any]], home: str) -> dict[str, int]:
    """Counts the families of a library: all, passed, passed with leftovers, without a convolution."""
    own = [line for line in families if line["home"] == home]
    passed = [line for line in own if line["outcome"] == "passed"]
    leftovers = [
        line for line in passed if any(path.get("left_alone") for path in line["paths"].values())
    ]
    return {
        "families": len(own),
        "passed": len(passed),
        "leftovers": len(leftovers),
        "without": sum(line["outcome"] == "no convolution" for line in own),
    }


def unrejected(families: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lists the networks whose wrong copy was not found."""
    controls = {
        line["model"]: [path["control"] for path in line["paths"].values() if "control" in path]
        for line in families
    }
    return [
        name for name, own in controls.items() if not all(control["rejected"] for control in own)
    ]


def gained(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean accuracy after conversions less that before, in points."""
    return 100 * mean(row["accuracy_after"] - row["accuracy_before"] for row in rows)


def rarer_than(runs: int) -> float:
    """Returns the number of which at most one event is expected (95 %), where none was seen in so many runs."""
    return -runs / math.log(0.05)


def pythons(content: Mapping[str, Any]) -> str:
    """Words the versions of Python of a record of versions, to the minor one."""
    return listed(dict.fromkeys(row["python"].rpartition(".")[0] for row in content["rows"]))


def within_budget(tasks: Iterable[Mapping[str, Any]]) -> int:
    """Counts the networks with trained weights whose errors are within their budgets on every way."""
    found = [
        all(row["error"] <= row["rounding"] for row in on_each_way(task, network["name"]))
        for task in tasks
        for network in task["networks"]
    ]
    return sum(found)


def soft_until(curves: Sequence[SharpnessCurve]) -> str:
    """Words the sharpness below which the bound of two dimensions promises nothing."""
    return f"{next(curve.soft_until() for curve in curves if curve.dims == 2):g}"


def errors_within(curves: Sequence[SharpnessCurve]) -> str:
    """Words how many errors were measured, and how many of them are within the bound and rounding."""
    errors = sum(len(curve.measured) * curve.samples for curve in curves)
    pairs = [
        measured <= bound + curve.rounding
        for curve in curves
        for measured, bound in zip(curve.measured, curve.bound, strict=True)
    ]
    within = "all" if all(pairs) else f"{sum(pairs)} of {len(pairs)} largest ones"
    return f"{errors} errors, {within} within the bound"


def planted(content: Mapping[str, Any]) -> dict[str, int]:
    """Counts the faults that were planted in networks, and what certificates find of them."""
    cases = read_cases(content)
    faults = [case for case in cases if case.fault is not None]
    right = [case for case in cases if case.fault is None]
    left = [case for case in faults if not case.found]
    small = ("weight by 1e-05", "weight by 1e-06")
    return {
        "networks": len({case.network for case in cases}),
        "right": sum(not case.found for case in right),
        "all": len(faults),
        "found": len(faults) - len(left),
        "left": len(left),
        "small": sum(str(case.fault).startswith(small) for case in left),
        "unmeasured": sum(case.effect is None for case in left),
        "loose": sum(not case.allclose[1] for case in faults),
    }


def published_epochs() -> int:
    """Returns the epochs of the paper's training."""
    return load_recipe("sa-quadratic").training.epochs


def hours(step: CaseResult) -> float:
    """Returns the core hours of the paper's training, by the time of one step on a part of its images."""
    steps = published_epochs() * TRAIN_IMAGES / step.images
    return steps * seconds(step, "convattn") / 3600


def least(name: str) -> str:
    """Returns the lowest version of Python, or of a package, that the project allows."""
    project = tomllib.loads((EVIDENCE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [project["project"]["requires-python"], *project["project"]["dependencies"]]
    line = wanted[0] if name == "python" else next(one for one in wanted if one.startswith(name))
    return line.partition(">=")[2].partition(",")[0]


def study_recipes() -> list[str]:
    """Lists the recipes of the paper's table that need no other run."""
    return [row.recipe for row in TABLE1 if not row.recipe.endswith("-pruned")]


def cost(content: Mapping[str, Any], width: int, contender: str) -> str:
    """Words the range of a contender's times by those of plain attention, on one thread."""
    rows = [row for row in content["rows"] if (row["width"], row["threads"]) == (width, 1)]
    ratios = [row["ratios"][contender][1] for row in rows]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"
