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

LAYER = "400 channels, 9 heads with their whole matrices W, forward"
IMAGES_NOTE = f"{LAYER}, per image. All pairs and the convolution ran on 25, 4 and 1 images."
MEMORY_NOTE = f"{LAYER}: weights and working memory, divided by those of nn.Conv2d 3 × 3."
SEQUENCES_NOTE = "16 channels, 9 heads with their whole matrices W, or taps, forward, one sequence."

Case = dict[str, Any]


def measured(case: Case, contender: str) -> dict[str, Any]:
    """Returns what was measured of a contender."""
    return next(item for item in case["measurements"] if item["contender"] == contender)


def milliseconds(case: Case, contender: str) -> float:
    """Returns the median time of one image."""
    return 1000 * median(measured(case, contender)["seconds"]) / case["images"]


def mebibytes(case: Case, contender: str) -> float:
    """Returns the memory of weights and of one call, in MiB."""
    item = measured(case, contender)
    return (item["weights"] + item["extra_memory"]) / 2**20


def by_convolution(case: Case, contender: str) -> float:
    """Returns the memory, divided by that of the convolution."""
    return mebibytes(case, contender) / mebibytes(case, "conv")


IMAGES = {
    "all pairs": ("quadratic-", "published"),
    "any function of the offset (FFT)": ("scaling-", "fourier"),
    "separable heads": ("scaling-", "separable"),
    "hard heads": ("scaling-", "shift"),
    "convolution 3 × 3": ("quadratic-", "conv"),
}
MEMORY = {
    "all pairs": ("quadratic-", "published"),
    "separable heads": ("quadratic-", "convattn"),
    "convolution 3 × 3": ("quadratic-", "conv"),
}
SEQUENCES = {
    "nine soft heads": ("sequences-forward", "soft"),
    "nine hard heads": ("sequences-forward", "hard"),
    "convolution, 9 taps": ("sequences-forward", "conv"),
    "convolution, N taps": ("sequences-forward", "long conv"),
}
"""Lines of the charts: the beginning of the names of their cases, and the contender."""

CHARTS = (
    ("time, images", "ms per image", IMAGES_NOTE, "layers", milliseconds, IMAGES),
    (
        "memory, images",
        "times that of the convolution",
        MEMORY_NOTE,
        "layers",
        by_convolution,
        MEMORY,
    ),
    ("time, sequences", "ms", SEQUENCES_NOTE, "sequences", milliseconds, SEQUENCES),
    ("memory, sequences", "MiB", SEQUENCES_NOTE, "sequences", mebibytes, SEQUENCES),
)
"""Name, unit, note, suite, what is drawn over N, and the lines."""


def costs() -> dict[str, Any]:
    """Returns where it was measured, and the charts: name, unit, note and lines of [N, value], three figures."""
    records, forward = {}, {}
    for suite in ("layers", "sequences"):
        records[suite] = json.loads((RESULTS / f"{suite}.json").read_text(encoding="utf-8"))
        cases = records[suite]["cases"]
        forward[suite] = [case for case in cases if "training" not in case["name"]]
    charts = []
    for name, unit, note, suite, value, lines in CHARTS:
        drawn = []
        for line, (prefix, contender) in lines.items():
            cases = [case for case in forward[suite] if case["name"].startswith(prefix)]
            points = [[case["pixels"], float(f"{value(case, contender):.3g}")] for case in cases]
            drawn.append({"name": line, "points": sorted(points)})
        charts.append({"name": name, "unit": unit, "note": note, "lines": drawn})
    layers = records["layers"]
    hardware = layers["hardware"]
    machine = f"{hardware['processor']}, {hardware['instructions']}, one thread, float32"
    return {"machine": machine, "torch": layers["versions"]["torch"], "charts": charts}


if __name__ == "__main__":
    text = json.dumps(costs(), ensure_ascii=False, separators=(",", ":"))
    WRITTEN.write_text(f"{text}\n", encoding="utf-8")
