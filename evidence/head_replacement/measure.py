"""One trained network: its report, and the curve of thresholds, beside as many random heads."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from convattn.heads.analysis import analyze
from convattn.heads.head_report import HeadReport
from convattn.heads.replace import replace_convolutional_heads
from convattn.heads.replaceable_heads import random_heads
from evidence.results import clocked

THRESHOLDS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01)
_BATCH = 500
_TIMED, _ROUNDS = 64, 7


@dataclass(frozen=True)
class Subject:
    """A network, images that its heads are measured on, and other images with their classes."""

    name: str
    model: nn.Module
    measured: Float[Tensor, "images channels rows cols"]
    tests: Float[Tensor, "tests channels rows cols"]
    labels: Int64[Tensor, " tests"]


def measure(
    subject: Subject, *, thresholds: Sequence[float] = THRESHOLDS, controls: int = 3
) -> dict[str, Any]:
    """Measures a network as it is, and with the heads replaced that meet each threshold, and as many at random."""
    report = analyze(subject.model, subject.measured, controls=(), progress=False)
    before = classes(subject.model, subject.tests)
    rows: list[dict[str, Any]] = []
    for threshold in sorted(thresholds, reverse=True):
        made, record = replace_convolutional_heads(subject.model, report, threshold)
        same = next((row for row in rows if row["replaced"] == len(record.replaced)), None)
        if same is not None:  # thresholds only add heads, so as many heads are the same heads
            rows.append({**same, "threshold": threshold})
            continue
        milliseconds = times(subject.model, made, subject.tests[:_TIMED])
        row = {
            "threshold": threshold,
            "replaced": len(record.replaced),
            "layers_without_softmax": len(record.layers_without_softmax),
            **effect(made, subject, before),
            "milliseconds_before": milliseconds[0],
            "milliseconds_after": milliseconds[1],
            "parameters": record.parameters,
        }
        drawn = range(controls) if record.replaced else ()
        row["controls"] = [
            control(subject, report, before, len(record.replaced), seed) for seed in drawn
        ]
        rows.append(row)
    heads, scores = [], []
    for layer in report.layers:
        for head in layer.heads:
            score = head.position_score
            heads.append({"layer": layer.name, "head": head.head, "score": str(score)})
            scores += [score.value] if isfinite(score.value) else []
    return {
        "network": subject.name,
        "heads": heads,
        "largest_score": max(scores, default=None),
        "layers": len(report.layers),
        "accuracy": accuracy(before, subject.labels),
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "measured_on": report.images,
        "tests": len(subject.tests),
        "curve": rows,
    }


def control(
    subject: Subject, report: HeadReport, before: Int64[Tensor, " tests"], count: int, seed: int
) -> dict[str, Any]:
    """Replaces as many random heads by their own kernels."""
    heads = random_heads(report, count, seed=seed)
    made, record = replace_convolutional_heads(subject.model, report, heads=heads)
    assert len(record.replaced) == count
    return {"seed": seed, **effect(made, subject, before)}


def times(
    before: nn.Module, after: nn.Module, images: Float[Tensor, "tests channels rows cols"]
) -> tuple[float, float]:
    """Returns the median milliseconds of an image, the two networks in turn after one run to warm up."""
    seconds: dict[nn.Module, list[float]] = {before: [], after: []}
    with torch.inference_mode():
        for _ in range(1 + _ROUNDS):
            for network, times in seconds.items():
                times.append(clocked(network, images))
    first, second = (statistics.median(times[1:]) for times in seconds.values())
    return 1e3 * first / len(images), 1e3 * second / len(images)


def effect(
    made: nn.Module, subject: Subject, before: Int64[Tensor, " tests"]
) -> dict[str, float | int]:
    """Returns the accuracy, the standard error of its difference to that before, and how many predictions changed."""
    after = classes(made, subject.tests)
    difference = (before == subject.labels).double() - (after == subject.labels).double()
    return {
        "accuracy": accuracy(after, subject.labels),
        "error": (difference.std() / len(difference) ** 0.5).item(),
        "changed": int((after != before).sum()),
    }


def classes(
    model: nn.Module, images: Float[Tensor, "tests channels rows cols"]
) -> Int64[Tensor, " tests"]:
    """Predicts the class of each image."""
    with torch.inference_mode():
        return torch.cat([model(part).argmax(1) for part in images.split(_BATCH)])


def accuracy(predicted: Int64[Tensor, " tests"], labels: Int64[Tensor, " tests"]) -> float:
    """Returns the share of right predictions."""
    return (predicted == labels).double().mean().item()
