"""Writes the measured costs that the guided tour shows: python scripts/tour_costs.py.

They are out of evidence/speed. The tour's sixth step draws them; a test holds the file against the records.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "speed"
WRITTEN = ROOT / "src/convattn/viewer/static/costs.json"
MIB = 2**20

LAYER = "400 channels, 9 heads with their whole matrices W, forward"
IMAGES_NOTE = f"{LAYER}, per image. All pairs and the convolution ran on 25, 4 and 1 images."
MEMORY_NOTE = f"{LAYER}: weights and working memory, divided by those of nn.Conv2d 3 × 3."
SEQUENCES_NOTE = "16 channels, 9 heads with their whole matrices W, or taps, forward, one sequence."


def read(suite: str) -> dict[str, Any]:
    """Returns the record of a suite."""
    return json.loads((RESULTS / f"{suite}.json").read_text(encoding="utf-8"))


def milliseconds(case: dict[str, Any], measured: dict[str, Any]) -> float:
    """Returns the median time of one image."""
    return 1000 * median(measured["seconds"]) / case["images"]


def memory(measured: dict[str, Any]) -> int:
    """Returns the memory of weights and of one call, in bytes."""
    return measured["weights"] + measured["extra_memory"]


def points(record: dict[str, Any], prefix: str, contender: str, value: Any) -> list[list[float]]:
    """Returns [N, value] of a contender in the cases whose names begin with a prefix, by N; three figures."""
    found = []
    for case in record["cases"]:
        by_name = {measured["contender"]: measured for measured in case["measurements"]}
        if case["name"].startswith(prefix) and "training" not in case["name"]:
            found.append([case["pixels"], float(f"{value(case, by_name[contender], by_name):.3g}")])
    return sorted(found)


def costs() -> dict[str, Any]:
    """Returns where it was measured, and the charts: name, unit, note and lines."""
    layers, sequences = read("layers"), read("sequences")

    def time(case: Any, measured: Any, _: Any) -> float:
        return milliseconds(case, measured)

    def share(_: Any, measured: Any, others: Any) -> float:
        return memory(measured) / memory(others["conv"])

    def mebibytes(_: Any, measured: Any, __: Any) -> float:
        return memory(measured) / MIB

    def lines(record: Any, value: Any, *wanted: tuple[str, str, str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "points": points(record, prefix, key, value)}
            for name, prefix, key in wanted
        ]

    long = (
        ("nine soft heads", "sequences-forward", "soft"),
        ("nine hard heads", "sequences-forward", "hard"),
        ("convolution, 9 taps", "sequences-forward", "conv"),
        ("convolution, N taps", "sequences-forward", "long conv"),
    )
    charts = [
        {
            "name": "time, images",
            "unit": "ms per image",
            "note": IMAGES_NOTE,
            "lines": lines(
                layers,
                time,
                ("all pairs", "quadratic-", "published"),
                ("any function of the offset (FFT)", "scaling-", "fourier"),
                ("separable heads", "scaling-", "separable"),
                ("hard heads", "scaling-", "shift"),
                ("convolution 3 × 3", "quadratic-", "conv"),
            ),
        },
        {
            "name": "memory, images",
            "unit": "times that of the convolution",
            "note": MEMORY_NOTE,
            "lines": lines(
                layers,
                share,
                ("all pairs", "quadratic-", "published"),
                ("separable heads", "quadratic-", "convattn"),
                ("convolution 3 × 3", "quadratic-", "conv"),
            ),
        },
        {
            "name": "time, sequences",
            "unit": "ms",
            "note": SEQUENCES_NOTE,
            "lines": lines(sequences, time, *long),
        },
        {
            "name": "memory, sequences",
            "unit": "MiB",
            "note": SEQUENCES_NOTE,
            "lines": lines(sequences, mebibytes, *long),
        },
    ]
    hardware = layers["hardware"]
    machine = f"{hardware['processor']}, {hardware['instructions']}, one thread, float32"
    return {"machine": machine, "torch": layers["versions"]["torch"], "charts": charts}


def main() -> None:
    """Writes the file."""
    text = json.dumps(costs(), ensure_ascii=False, separators=(",", ":"))
    WRITTEN.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
