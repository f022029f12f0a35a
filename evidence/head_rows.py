"""What a record says of each head of a report."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from convattn.errors import ArgumentError
from convattn.heads.head_report import SHUFFLED, UNTRAINED, HeadReport
from convattn.heads.jackknife import Estimate
from convattn.heads.verdict import HeadVerdict, count_words
from convattn.lab.tables import markdown_table
from convattn.structure import network_digest

NUMBERS = (
    "position_score",
    "hard_share",
    "nearness",
    "side_share",
    "line_share",
    "evenness",
    "content_share",
    "prefix_share",
)
"""Numbers that rules compare with limits."""


def kept_report(
    file: Path, network: nn.Module, measure: Callable[[nn.Module], HeadReport]
) -> HeadReport:
    """Reads what was measured on a network before, or measures and saves it.

    Raises:
        ArgumentError: The file is of other weights, or was written by code that takes their digest otherwise.
    """
    if not file.is_file():
        measure(network).save(file)
    report = HeadReport.load(file)
    if report.weights[""] != network_digest(network):
        raise ArgumentError(
            f"{file} must be of the weights that are loaded now, but is of others, or of an older version of this code."
            " Delete it, and the heads are measured again"
        )
    return report


def described(report: HeadReport) -> dict[str, Any]:
    """Returns what every record says of a report."""
    return {
        "control_images": report.control_images,
        "headline": report.headline(),
        "untrained": in_control(report, UNTRAINED),
        "shuffled": in_control(report, SHUFFLED),
        "heads": heads_of(report),
    }


def heads_of(report: HeadReport) -> list[dict[str, Any]]:
    """Returns the word and the numbers of every head, as measured and in the controls; errors stand second."""
    rows = []
    for depth, layer in enumerate(report.layers, start=1):
        for number, (head, verdict) in enumerate(zip(layer.heads, layer.verdicts, strict=True)):
            row: dict[str, Any] = {"layer": depth, "head": number + 1, "verdict": str(verdict)}
            row |= {"word": verdict.word, "place": verdict.place, "shift": list(head.hard_shift)}
            for name in NUMBERS:
                row[name] = _rounded(getattr(head, name))
            for control in (SHUFFLED, UNTRAINED):
                measured = layer.control(control)
                if measured is not None:
                    other = measured.heads[number]
                    row[control] = {
                        "position_score": _rounded(other.position_score),
                        "hard_share": _rounded(other.hard_share),
                    }
            rows.append(row)
    return rows


def heads_table(heads: Sequence[Mapping[str, Any]], least: float = -math.inf) -> str:
    """Lists the heads of a sequence, from a position score on, with their word, numbers and controls."""
    rows = []
    for head in heads:
        if head["position_score"][0] < least:
            continue
        cells = [f"{head['layer']}.{head['head']}", head["verdict"], f"{head['shift'][0]:+g}"]
        for name in ("hard_share", "position_score"):
            value, error = head[name]
            cells.append(f"{value:z.2f} ± {error:.2f}")
        controls = [head[SHUFFLED], head[UNTRAINED]]
        cells += [f"{control['position_score'][0]:z.2f}" for control in controls]
        rows.append(cells)
    columns = ["head", "it is", "δ", "share", "R²", "R², shuffled", "R², untrained"]
    return markdown_table(columns, rows)


def in_control(report: HeadReport, name: str) -> str:
    """Counts the words of a control."""
    verdicts: list[HeadVerdict] = []
    for layer in report.layers:
        verdicts += layer.verdicts_in(name)
    return count_words(verdicts)


def _rounded(estimate: Estimate) -> list[float]:
    return [round(estimate.value, 4), round(estimate.error, 4)]
