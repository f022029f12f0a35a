"""What a head report and a run say of the heads of a scene."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from convattn.analysis.heads import HeadSnapshot
from convattn.records import HeadReport
from convattn.records.head_report import HEAD_NUMBERS, Estimate, HeadStatistics
from convattn.viewer.scene import Collected


def describe_statistics(report: HeadReport | None, name: str, heads: int) -> dict[str, Any]:
    """Returns the sentence of a layer and the numbers of its heads; None where the report does not have it."""
    found = next((layer for layer in report.layers if layer.name == name), None) if report else None
    if found is None or len(found.heads) != heads:
        return {"sentence": None, "statistics": None}
    return {"sentence": found.sentence, "statistics": [_head(head) for head in found.heads]}


def _head(head: HeadStatistics) -> dict[str, Any]:
    numbers = {name: _estimate(getattr(head, name)) for name in HEAD_NUMBERS}
    shift = [_estimate(one) for one in head.shift]
    return {
        "shift": {"value": [one["value"] for one in shift], "error": [one["error"] for one in shift]},
        "hard_shift": {"value": [_finite(one) for one in head.hard_shift], "error": None},
        **numbers,
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": _finite(estimate.value), "error": _finite(estimate.error)}


def _finite(value: float) -> float | None:
    """Returns a number that JSON can hold."""
    return value if math.isfinite(value) else None


def describe_timeline(
    snapshots: Sequence[HeadSnapshot], layers: Sequence[int], heads: Sequence[int], name: str, collected: Collected
) -> dict[str, Any] | None:
    """Describes where quadratic heads were during training; None where snapshots are none, or of other layers.

    `layers` are the numbers of the layers with such heads, `heads` how many each has. A layer with fewer heads than
    another is filled up with nan.
    """
    times = sorted({(shot.step, shot.epoch) for shot in snapshots})
    if not times or {shot.layer for shot in snapshots} != set(range(len(layers))):
        return None
    if any(len(shot.centres) != heads[shot.layer] for shot in snapshots):
        return None
    centres = torch.full((len(times), len(layers), max(heads), 2), math.nan)
    sharpness = torch.full((len(times), len(layers), max(heads)), math.nan)
    moments = {time: number for number, time in enumerate(times)}
    for shot in snapshots:
        moment, count = moments[shot.step, shot.epoch], heads[shot.layer]
        centres[moment, shot.layer, :count] = torch.from_numpy(shot.centres).float()
        # Σ⁻¹ = 2α of a quadratic head, and its mean over the directions of a generalised one.
        trace = torch.from_numpy(shot.precisions).diagonal(dim1=-2, dim2=-1).sum(-1)
        sharpness[moment, shot.layer, :count] = (trace / 4).float()
    return {
        "epochs": [epoch for _, epoch in times],
        "centres": collected.add(f"{name}/timeline/centres", centres, gaps=True),
        "sharpness": collected.add(f"{name}/timeline/sharpness", sharpness, gaps=True),
        "layers": list(layers),
    }
