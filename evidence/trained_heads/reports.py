"""Reports on the heads of a network that are kept beside its weights, and the order of its heads."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from convattn.errors import ArgumentError
from convattn.heads.head_report import HeadReport
from convattn.structure import network_digest


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


def by_score(report: HeadReport) -> list[tuple[str, int]]:
    """Lists the heads, those with the highest position score first."""
    scored = []
    for layer in report.layers:
        scored += [(head.position_score.value, layer.name, head.head) for head in layer.heads]
    return [(layer, head) for _, layer, head in sorted(scored, reverse=True)]
