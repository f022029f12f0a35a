"""Numbers of the records, and how pages word them: what templates (evidence/templates) may use."""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean as mean
from statistics import median
from typing import Any

from scipy import stats

from benchmarks.record import BenchmarkRecord, CaseResult
from benchmarks.report import fit_exponent, short
from convattn import load_recipe
from convattn.lab.paper_table import TABLE1
from convattn.lab.study_record import t_interval
from convattn.lab.tables import markdown_table
from convattn.layers import RelativeAttention
from convattn.models import AttentionNet
from evidence.encodings import __main__ as encodings
from evidence.results import EVIDENCE, ROOT
from evidence.speedrun.operations import TRAIN_IMAGES
from evidence.studies import Study, less


def record(file: str) -> Any:
    """Reads a JSON file, named from the folder of evidence."""
    return json.loads((EVIDENCE / file).read_text(encoding="utf-8"))


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


@dataclass(frozen=True)
class Gap:
    """A difference of accuracy with the same seeds, and whether it is one by a rule for all that are compared."""

    values: list[float]  # Differences by seed, in points
    p: float  # Two-sided p of a t test, adjusted by Holm's rule for all differences of the family

    @property
    def word(self) -> str:
        """Says which side is ahead, or that none is: p is at least 0.05."""
        if self.p >= LEVEL:
            return "not resolved"
        return "ahead" if mean(self.values) > 0 else "behind"

    def __str__(self) -> str:
        """Words the mean, its own 95 % t interval, the adjusted p, and who is ahead."""
        return f"{signed(mean(self.values), 2, '+')} points ({limits(self.values)}; p = {self.p:.2g}: {self.word})"


LEVEL = 0.05
"""Adjusted p below which a difference is resolved."""


def family(
    differences: Mapping[tuple[str, str], Sequence[float]],
) -> Callable[[str, str], Gap]:
    """Compares the differences of a family with Holm's rule; returns a look-up by the pair, either way round."""
    tests = {pair: stats.ttest_1samp(values, 0).pvalue for pair, values in differences.items()}
    adjusted: dict[tuple[str, str], float] = {}
    largest = 0.0
    for rank, (pair, p) in enumerate(sorted(tests.items(), key=lambda test: test[1])):
        largest = max(largest, min(1.0, (len(tests) - rank) * p))
        adjusted[pair] = largest

    def gap(one: str, other: str) -> Gap:
        if (one, other) in adjusted:
            return Gap(list(differences[one, other]), adjusted[one, other])
        return Gap([-value for value in differences[other, one]], adjusted[other, one])

    return gap


COMPARED: dict[str, list[tuple[str, str]]] = {
    "encodings": list(chain.from_iterable(encodings.QUESTIONS.values())),
    "axes": [
        ("axial-table", "axial-function"),
        ("joint-table", "joint-function"),
        ("axial-table", "joint-table"),
        ("axial-function", "joint-function"),
        ("short-sinusoids", "axial-table"),
    ],
    "heads": [(label, "heads-9") for label in ("heads-4", "heads-16", "convolutions")],
    "quarter": [(label, "attention") for label in ("conv", "hard", "random")],
    "pairs": [("attention", "conv"), ("hard", "conv"), ("attention", "hard")],
    "controls": [
        *((label, "attention") for label in ("conv", "hard", "content", "random", "random-frozen")),
        ("random", "random-frozen"),
    ],
}
"""The differences of each study that pages give: its family."""


def compared(study: Study, name: str) -> Callable[[str, str], Gap]:
    """Compares the networks of a study, by the family of that name."""
    return family({pair: study.less(*pair) for pair in COMPARED[name]})


def after_the_fact(axes: Study, heads: Study) -> Callable[[str, str], Gap]:
    """Compares encodings that are sums over axes with quadratic heads, which no plan asked for."""
    quadratic = heads.accuracy("heads-9")
    labels = ("short-sinusoids", "axial-table")
    return family({(label, "heads-9"): less(axes.accuracy(label), quadratic) for label in labels})


def difference_table(
    gap: Callable[[str, str], Gap], pairs: Iterable[tuple[str, str]], what: str
) -> str:
    """Tabulates differences of accuracy with the same seed, in points; `what` heads the column of networks."""
    rows = []
    for one, other in pairs:
        found = gap(one, other)
        shown = ", ".join(signed(value, 2, "+") for value in found.values)
        rows.append([f"`{one}`", f"`{other}`", str(found), shown])
    return markdown_table([what, "less", "mean, 95 % t interval, p", "by seed"], rows)


def yes(holds: object) -> str:
    """Answers a question."""
    return "Yes" if holds else "No"


def listed(items: Iterable[object]) -> str:
    """Writes a list, as in 9, 8 and 9, or a single item."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def percent(share: float, digits: int = 2) -> str:
    """Writes a fraction in percent, as in 93.55 %."""
    return f"{100 * share:.{digits}f} %"


def tight(share: float, digits: int = 2) -> str:
    """Writes a fraction in percent as tables do, as in 93.55%."""
    return f"{share:.{digits}%}"


def whole(number: float) -> str:
    """Writes a whole number with its thousands."""
    return f"{number:,.0f}"


def three(number: float) -> str:
    """Writes three digits, without an exponent."""
    return f"{float(f'{number:.3g}'):,g}"


def fixed(number: float, digits: int = 2) -> str:
    """Writes so many digits after the point."""
    return f"{number:,.{digits}f}"


def speed_record(name: str) -> BenchmarkRecord:
    """Reads a record of speed."""
    return BenchmarkRecord.load(EVIDENCE / "speed" / f"{name}.json")


def speed(name: str) -> dict[str, CaseResult]:
    """Reads the cases of a record of speed, by name."""
    return {case.name: case for case in speed_record(name).cases}


def seconds(case: CaseResult, contender: str) -> float:
    """Returns the median time of a contender."""
    times = next(item.seconds for item in case.measurements if item.contender == contender)
    return median(times)


def ms(case: CaseResult, contender: str) -> str:
    """Words the median time of a contender."""
    return f"{short(1000 * seconds(case, contender))} ms"


def ratio(case: CaseResult, upper: str, lower: str) -> str:
    """Words the median of the ratios of each round."""
    return short(median(case.ratios(upper, lower)))


def medians(cases: Iterable[CaseResult], uppers: Sequence[str], lower: str = "conv") -> list[float]:
    """Lists the median ratios of some contenders to another, over cases."""
    pairs = [(case, upper) for case in cases for upper in uppers]
    return [median(case.ratios(upper, lower)) for case, upper in pairs]


def farthest(cases: Iterable[CaseResult], uppers: Sequence[str], lower: str) -> float:
    """Returns the factor by which the times of one round differ most from equal times."""
    pairs = [(case, upper) for case in cases for upper in uppers]
    ratios = [ratio for case, upper in pairs for ratio in case.ratios(upper, lower)]
    return max(*ratios, 1 / min(ratios))


def growth(small: CaseResult, large: CaseResult, contender: str) -> float:
    """Returns the exponent of time over the number of pixels, between two cases."""
    points = [(case.pixels, seconds(case, contender)) for case in (small, large)]
    return fit_exponent(points) or 0.0


def mebibytes(case: CaseResult, contender: str) -> str:
    """Words the largest memory of a contender's call, in MiB."""
    memory = next(item.extra_memory for item in case.measurements if item.contender == contender)
    return f"{(memory or 0) / 2**20:,.0f}"


def paper_gap() -> str:
    """Words the paper's accuracy of the learned encoding less that of the quadratic one, in points."""
    rows = {row.recipe: row.paper_accuracy for row in TABLE1}
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


def published(recipe: str) -> dict[str, str]:
    """Words the published accuracies of a recipe in percent, and its published size; – where there is none."""
    row = next(row for row in TABLE1 if row.recipe == recipe)
    both = {"paper": row.paper_accuracy, "replication": row.replication_accuracy}
    words = {name: "–" if one is None else f"{100 * one:.4g}" for name, one in both.items()}
    return {**words, "parameters": row.paper_parameters or "–"}


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


def gained(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean accuracy after conversions less that before, in points."""
    return 100 * mean(row["accuracy_after"] - row["accuracy_before"] for row in rows)


def rarer_than(runs: int) -> float:
    """Returns the number of which at most one event is expected (95 %), where none was seen in so many runs."""
    return -runs / math.log(0.05)


def pythons(content: Mapping[str, Any]) -> str:
    """Words the versions of Python of a record of versions, to the minor one."""
    return listed(dict.fromkeys(row["python"].rpartition(".")[0] for row in content["rows"]))


def published_epochs() -> int:
    """Returns the epochs of the paper's training."""
    return load_recipe("sa-quadratic").training.epochs


def hours(step: CaseResult) -> float:
    """Returns the core hours of the paper's training, by the time of one step on a part of its images."""
    steps = published_epochs() * TRAIN_IMAGES / step.images
    return steps * seconds(step, "convattn") / 3600


def least(name: str) -> str:
    """Returns the lowest version of Python, or of a package, that the project allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
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
