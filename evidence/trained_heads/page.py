"""What the page of trained heads says of its records, and its plot.

python -m evidence.trained_heads.page    # draws docs/results/trained-cause.png
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from convattn.heads.jackknife import held_out
from convattn.heads.verdict import ANYWHERE
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.study_record import t_interval
from convattn.lab.tables import markdown_table
from evidence.results import PAGES
from evidence.trained_heads.arms import (
    ANOTHER,
    MEAN,
    OTHERS,
    OWN,
    REVERSED,
    TAP,
    TURNED,
    UNIFORM,
    ZERO,
)
from evidence.values import Gap, family, listed, signed

NAMES = ("vit-s", "clip", "swin", "whisper", "minilm", "antiberty")
"""The networks, in the order of the page."""

INPUTS = 100
"""Inputs on which heads are measured, and as many on which they are tested."""

SIZED = ("vit-s", "clip")
"""The networks that are asked at other sizes."""

CHOSEN = 8
"""Heads that are replaced together."""

Record = Mapping[str, Any]
"""What is known of a network."""


@cache
def read_record(name: str) -> Record | None:
    """Reads the record of a network, once: it is finished; None if it was not run."""
    file = Path(__file__).parent / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def run() -> dict[str, Record]:
    """Reads the records that there are, by name."""
    records = {name: read_record(name) for name in NAMES}
    return {name: record for name, record in records.items() if record is not None}


def has(record: Record, part: str) -> bool:
    """Tells whether a part of the protocol was run to its end."""
    return part in record["parts"]


def with_part(part: str) -> dict[str, Record]:
    """Returns the records in which a part was run to its end."""
    return {name: record for name, record in run().items() if has(record, part)}


def missing(part: str, names: Sequence[str] = NAMES) -> str:
    """Says which networks a part was not run on, of those that it is for."""
    left = [name for name in names if name not in with_part(part)]
    return f"Not run yet: {listed(f'`{name}`' for name in left)}." if left else ""


_SIDES = {(0, -1): "left", (0, 1): "right", (-1, 0): "above", (1, 0): "below"}


def cross(record: Record) -> list[dict[str, Any]]:
    """Lists the head of each of the four neighbours, that with the largest share; fewer if some has none.

    All are of one grid: of several that where the neighbour with the least share has the most.
    """
    by_grid: list[list[dict[str, Any]]] = []
    for grid in {tuple(head["grid"]) for head in record["heads"]}:
        found = []
        for shift, looks in _SIDES.items():
            of_grid = [head for head in record["heads"] if tuple(head["grid"]) == grid]
            there = [head for head in of_grid if tuple(head["shift"]) == shift]
            if there:
                found.append({**max(there, key=lambda head: head["share"][0]), "looks": looks})
        by_grid.append(found)
    return max(by_grid, key=lambda heads: (len(heads), *_least_share(heads)))


def _least_share(heads: Sequence[Mapping[str, Any]]) -> list[float]:
    return [min((head["share"][0] for head in heads), default=0.0)]


def cross_table() -> str:
    """Tabulates the heads of the cross: what each is, trained and in the controls."""
    rows = []
    for record in with_part("words").values():
        if not _of_pictures(record):
            continue
        for head in cross(record):
            numbers = [_number(head[name]) for name in ("score", "share")]
            controls = [f"{head[name][1]:z.2f}" for name in ("untrained", "kept", "shuffled")]
            cells = [record["title"], f"{head['layer']}.{head['head']}", head["verdict"]]
            rows.append([*cells, head["looks"], *numbers, *controls])
    columns = ["network", "head", "it is", "looks", "R²", "share"]
    return markdown_table([*columns, "R², untrained", "positions kept", "shuffled"], rows)


def scored_in_words() -> str:
    """Says on how many photographs position scores were fitted, and on how many others they were scored."""
    counts = {
        (record["images"], record["control_images"], record["kept_images"])
        for record in with_part("words").values()
        if _of_pictures(record)
    }
    (images, control, kept), *others = counts
    if others:
        raise ValueError(
            "networks differ in their numbers of photographs, and the page has one sentence for all"
        )
    scored = held_out(images)
    return (
        f"fitted to {images - scored} of the {images} photographs and scored on the {scored} others. In the controls"
        f" {held_out(control)} of {control} are scored, and {held_out(kept)} of {kept} where positions are kept"
    )


def cross_in_words() -> str:
    """Says in how many of the networks of pictures heads hold the four neighbours, and what they are untrained."""
    records = [record for record in with_part("words").values() if _of_pictures(record)]
    whole = [record for record in records if len(cross(record)) == len(_SIDES)]
    untrained = [head["untrained"][0] for record in whole for head in cross(record)]
    return (
        f"In {len(whole)} of {len(records)} trained networks of pictures, heads look at the patches to the left, to the"
        f" right, above and below: the cross of a 3 × 3 kernel. Untrained, {untrained.count(ANYWHERE)} of these"
        f" {len(untrained)} heads look everywhere nearly alike."
    )


def capitalize_first(words: str) -> str:
    """Writes the first letter large, and leaves the others."""
    return words[:1].upper() + words[1:]


def kept_in_words() -> str:
    """Says of how many heads of the cross trained tables of positions alone make the same word and place."""
    words = []
    for record in with_part("words").values():
        if _of_pictures(record):
            heads = cross(record)
            same = sum(head["kept"][0] == head["verdict"] for head in heads)
            words.append(f"{record['title']}, {same} of {len(heads)}")
    return "; ".join(words)


def _of_pictures(record: Record) -> bool:
    return len(record["heads"][0]["shift"]) == len(next(iter(_SIDES)))


def words_table() -> str:
    """Counts the words of each network, as it is and in the controls."""
    rows = []
    for record in with_part("words").values():
        words = record["words"]
        rows.append([record["title"], *(words[name] for name in ("measured", *CONTROLS))])
    return markdown_table(["network", "as it is", *CONTROLS.values()], rows)


CONTROLS = {"untrained": "untrained", "kept": "positions kept", "shuffled": "shuffled"}
"""Controls, and what tables call them."""


def heads_table(record: Record) -> str:
    """Tabulates all heads of a network."""
    rows = []
    damage = {tuple(row["head"]): row["damage"] for row in record["alone"]}
    for head in record["heads"]:
        cells = [f"{head['layer']}.{head['head']}", head["verdict"], _steps(head["shift"])]
        cells += [_number(head["share"]), _number(head["score"]), f"{head['distance']:.1f}"]
        for name in CONTROLS:
            verdict, score = head[name]
            cells.append(f"{verdict}, {score:z.2f}")
        alone = damage.get((head["name"], head["head"] - 1))
        rows.append([*cells, "–" if alone is None else f"{alone:z.5f}"])
    columns = ["head", "it is", "δ", "share", "R²", "distance", *CONTROLS.values(), "damage alone"]
    return markdown_table(columns, rows)


def _steps(shift: Sequence[float]) -> str:
    return ", ".join(signed(step, 0, "+") for step in shift)


def _number(pair: Sequence[float]) -> str:
    return f"{pair[0]:z.2f} ± {pair[1]:.2f}"


ARMS = (OWN, MEAN, OTHERS, ANOTHER, UNIFORM, ZERO, TAP, *TURNED, REVERSED)
"""The arms, in the order of tables."""


def values(record: Record, arm: str, number: str = "feature") -> dict[int, float]:
    """Returns what each test input keeps in an arm, by its number."""
    kept: dict[int, float] = {}
    for row in record["cause"]:
        if row["arm"] == arm:
            kept |= dict(zip(row["inputs"], row[number], strict=True))
    return dict(sorted(kept.items()))


def best_turned(record: Record) -> list[float]:
    """Returns the quality of each input in the turn that is best on it."""
    turned = [values(record, arm) for arm in (*TURNED, REVERSED)]
    return [
        max(of_turns) for of_turns in zip(*(one.values() for one in turned if one), strict=True)
    ]


def rule_one() -> dict[str, Gap]:
    """Compares the own kernel with the turned one by rule 1, in every network."""
    differences = {}
    for name, record in with_part("cause").items():
        pairs = zip(values(record, OWN).values(), best_turned(record), strict=True)
        differences[name, "turned"] = [own - turned for own, turned in pairs]
    gap = family(differences)
    return {name: gap(name, "turned") for name, _ in differences}


def rule_one_table() -> str:
    """Tabulates rule 1."""
    rows = []
    for name, gap in rule_one().items():
        record = run()[name]
        low, high = t_interval(gap.values)
        own, turned = fmean(values(record, OWN).values()), fmean(best_turned(record))
        difference = f"{signed(fmean(gap.values), 4)} ({signed(low, 4)} to {signed(high, 4)})"
        cells = [record["title"], f"{own:.4f}", f"{turned:.4f}", difference, f"{gap.p:.2g}"]
        rows.append([*cells, gap.word])
    columns = ["network", "own kernel", "best turned", "difference (95 % interval)", "p", "own is"]
    return markdown_table(columns, rows)


def rule_one_in_words() -> str:
    """Says how rule 1 fell."""
    gaps = rule_one()
    ahead = [name for name, gap in gaps.items() if gap.word == "ahead"]
    others = [
        f"{run()[name]['title']}: {gap.word}" for name, gap in gaps.items() if name not in ahead
    ]
    words = f"in {len(ahead)} of {len(gaps)} networks the own kernel is ahead of every turned one"
    return f"{words} ({'; '.join(others)})" if others else words


def cause_table(number: str = "feature") -> str:
    """Tabulates what is kept in each arm: mean over inputs, and its 95 % t interval."""
    records = with_part("cause")
    rows = []
    for arm in ARMS:
        cells = []
        for record in records.values():
            kept = list(values(record, arm, number).values())
            if not kept:
                cells.append("–")
                continue
            low, high = t_interval(kept)
            cells.append(f"{fmean(kept):.3f} ({low:.3f} to {high:.3f})")
        rows.append([arm, *cells])
    return markdown_table(["arm", *(record["title"] for record in records.values())], rows)


def draws_table() -> str:
    """Tabulates the arms with draws: the least, the middle and the most of their means over inputs."""
    rows = []
    for record in with_part("cause").values():
        for arm in (ANOTHER, OTHERS):
            means = sorted(fmean(row["feature"]) for row in record["cause"] if row["arm"] == arm)
            cells = [f"{means[0]:.3f}", f"{means[len(means) // 2]:.3f}", f"{means[-1]:.3f}"]
            rows.append([record["title"], arm, str(len(means)), *cells])
    return markdown_table(["network", "arm", "draws", "least", "middle", "most"], rows)


def rule_two(record: Record) -> str:
    """Says which predictor is better by rule 2."""
    low, high = record["rule_two"]["interval"]
    if low > 0:
        return "position score"
    return "distance" if high < 0 else "neither"


def rule_two_table() -> str:
    """Tabulates rule 2."""
    rows = []
    for record in with_part("alone").values():
        found = record["rule_two"]
        low, high = found["interval"]
        cells = [record["title"], str(len(record["alone"])), str(found["inputs"])]
        cells += [signed(found["score"]), signed(found["distance"], 2, "+")]
        rows.append([*cells, f"{signed(low)} to {signed(high)}", rule_two(record)])
    columns = ["network", "heads", "inputs", "ρ(score, damage)", "ρ(distance, damage)"]
    return markdown_table([*columns, "difference, 95 % interval", "better predictor"], rows)


def rule_two_in_words() -> str:
    """Says how rule 2 fell."""
    records = with_part("alone")
    better = [rule_two(record) for record in records.values()]
    return (
        f"the position score is the better predictor in {better.count('position score')} of {len(better)} networks, the"
        f" mean attention distance in {better.count('distance')}, neither in {better.count('neither')}"
    )


def sizes_table() -> str:
    """Tabulates what kernels of one size keep at others, and the time they take."""
    rows = []
    for record in with_part("sizes").values():
        for row in record["sizes"]:
            heads = f"{row['count']}, {row['heads']}"
            pixels, photographs = str(row["pixels"]), str(len(row["feature"]))
            cells = [record["title"], heads, pixels, photographs, row["arm"]]
            for number in ("feature", "tokens"):
                low, high = t_interval(row[number])
                cells.append(f"{fmean(row[number]):.3f} ({low:.3f} to {high:.3f})")
            times = row["times"]
            took = f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else "–"
            rows.append([*cells, took])
    columns = ["network", "heads", "pixels", "photographs", "arm", "feature", "patches"]
    return markdown_table([*columns, "time"], rows)


def tasks_table() -> str:
    """Tabulates the tasks: what is right, as it is and in the arms without draws."""
    rows = []
    for name, task in TASKS.items():
        right = _task(name)
        if right:
            rows.append([f"{run()[name]['title']}: {task}", *right.values()])
    arms = ["as it is", OWN, "turned by 180°, or reversed", MEAN, ZERO, UNIFORM, TAP]
    return markdown_table(["task, % right", *arms], rows)


BEFORE = "before"
"""The network as it is."""

TASKS = {
    "clip": "linear probe on CIFAR-10",
    "swin": "decisions that stay",
    "whisper": "digits",
    "antiberty": "masked residues",
}
"""What the tasks are."""


def tasks_in_words() -> str:
    """Says of every task what is right as it is, and with the own and the turned kernels of the chosen heads."""
    words = []
    for name, task in TASKS.items():
        right = _task(name)
        if right:
            before, own, turned, *_ = right.values()
            words.append(f"{run()[name]['title']}, {task}: {before}, {own}, {turned}")
    return f"% right as it is, with own kernels of {CHOSEN} heads, with turned ones: {'; '.join(words)}"


def _task(name: str) -> dict[str, str]:
    """Words what is right of a task in each arm, or is empty if it was not run."""
    record = run().get(name)
    if record is None:
        return {}
    if has(record, "tasks"):
        return {row["arm"]: _right(row["right"]) for row in record["tasks"]}
    if name == "swin" and has(record, "cause"):
        arms = (OWN, TURNED[1], MEAN, ZERO, UNIFORM, TAP)
        return {BEFORE: "100.0"} | {
            arm: _right(list(values(record, arm, "same").values())) for arm in arms
        }
    return {}


def missing_tasks() -> str:
    """Says which tasks were not run."""
    left = [f"`{name}`" for name in TASKS if not _task(name)]
    return f"Not run yet: {listed(left)}." if left else ""


def _right(shares: Sequence[float]) -> str:
    """Words a share in per cent with its standard error over inputs."""
    return f"{100 * fmean(shares):.1f} ± {100 * stdev(shares) / len(shares) ** 0.5:.1f}"


_LINES = {
    OWN: ("own kernel", "o-"),
    MEAN: ("mean map", "^:"),
    OTHERS: ("other heads of the layers", "x-."),
    ANOTHER: ("another's kernel", "D--"),
    UNIFORM: ("uniform", "v-."),
    ZERO: ("zero", "P:"),
    TAP: ("one tap", "s--"),
    TURNED[1]: ("turned by 180°, or reversed", "*-"),
    REVERSED: ("turned by 180°, or reversed", "*-"),
}
"""What the plot calls an arm, and its line."""


def curve_of(record: Record, arm: str) -> dict[int, float]:
    """Returns the quality by the number of heads replaced, on the same inputs for all numbers."""
    kept: dict[int, dict[int, float]] = {}
    for row in record["curve"]:
        if row["arm"] == arm:
            by_input = dict(zip(row["inputs"], row["feature"], strict=True))
            kept.setdefault(row["replaced"], {}).update(by_input)
    if kept:
        inputs = next(iter(kept.values()))
        chosen = values(record, arm)
        kept[CHOSEN] = {number: chosen[number] for number in inputs}
    return {count: fmean(kept[count].values()) for count in sorted(kept)}


def draw_curves(path: Path) -> None:
    """Draws a panel for each network: quality over the heads replaced, an arm a line."""
    records = with_part("curve")
    across = min(len(records), 3)
    down = -(-len(records) // 3)
    with figure_files([path], (4.1 * across, 3.1 * down + 0.7)) as figure:
        panels = figure.subplots(down, across, squeeze=False).flat
        colours = {arm: COLOURS[number] for number, arm in enumerate(dict.fromkeys(_LINES))}
        colours[REVERSED] = colours[TURNED[1]]
        for record, panel in zip(records.values(), panels, strict=False):
            for arm, (label, style) in _LINES.items():
                points = curve_of(record, arm)
                if points:
                    marks = {"color": colours[arm], "label": label, "markersize": 4.5}
                    panel.plot(list(points), list(points.values()), style, **marks)
            panel.set(title=record["title"], xscale="log", xlabel="heads replaced")
            panel.set_xticks(list(curve_of(record, OWN)))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.minorticks_off()
        for panel in list(panels):
            panel.set_visible(False)
        first = figure.axes[0]
        for panel in figure.axes[::3]:
            panel.set_ylabel("cosine of the feature to before")
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4)


FIGURES: dict[str, Callable[[Path], None]] = {"trained-cause.png": draw_curves}


if __name__ == "__main__":
    for figure_name, draw in FIGURES.items():
        draw(PAGES / figure_name)
