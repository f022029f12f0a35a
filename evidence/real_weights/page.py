"""What the pages of networks with trained weights say of their record."""

from collections.abc import Iterable, Mapping
from typing import Any

WAYS = (
    "as attention, planned path",
    "as attention, softmax along each axis",
    "as attention, and back as convolutions",
)
"""Conversions, in the order of their columns."""


def on_each_way(task: Mapping[str, Any], network: str) -> list[Mapping[str, Any]]:
    """Lists how a network of a task was converted, on each way."""
    ways = {one["way"]: one["conversions"] for one in task["outcomes"]}
    return [next(row for row in ways[way] if row["network"] == network) for way in WAYS]


def shares(task: Mapping[str, Any], network: str) -> list[str]:
    """Words the errors of a network on each way, in units of their budgets."""
    return [f"{row['error'] / row['rounding']:.2f}" for row in on_each_way(task, network)]


def within_budget(tasks: Iterable[Mapping[str, Any]]) -> int:
    """Counts the networks whose errors are within their budgets on every way."""
    found = 0
    for task in tasks:
        for network in task["networks"]:
            rows = on_each_way(task, network["name"])
            found += all(row["error"] <= row["rounding"] for row in rows)
    return found


def changed(tasks: Iterable[Mapping[str, Any]]) -> int:
    """Counts the decisions that changed on any way."""
    found = 0
    for task in tasks:
        for outcome in task["outcomes"]:
            found += sum(decision["changed"] for decision in outcome["decisions"])
    return found
