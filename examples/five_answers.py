"""Recomputes the five answers of docs/results/index.md from the records alone, in a checkout: run from its root."""

import json
from pathlib import Path
from statistics import fmean, median, stdev

from pyarrow import parquet

EVIDENCE = Path(__file__).parents[1] / "evidence"
T = {3: 4.303, 10: 2.262}  # 97.5 % quantiles of Student's t by the number of seeds


def _read(file: str) -> dict:
    return json.loads((EVIDENCE / file).read_text(encoding="utf-8"))


def _accuracies(folder: str, seed: int) -> list[float]:
    lines = (EVIDENCE / f"{folder}-{seed}/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [100 * json.loads(line)["test_accuracy"] for line in lines]


def _interval(values: list[float]) -> str:
    half = T[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):+.2f} ({fmean(values) - half:.2f} to {fmean(values) + half:.2f})"


def _taps(folder: str, epoch: int) -> int:
    found = set()
    for row in parquet.read_table(EVIDENCE / folder / "heads.parquet").to_pylist():
        tap = round(row["centre_row"]), round(row["centre_col"])
        if row["step"] == 48 * epoch and max(map(abs, tap)) <= 1:
            found.add((row["layer"], *tap))
    return len(found)


resnet = _read("trained_networks/trained-networks.json")["resnet18"]
sweep = (EVIDENCE / "sweep/networks.jsonl").read_text(encoding="utf-8").splitlines()
outcomes = [json.loads(line).get("outcome") for line in sweep]
changed, passed = max(row["top1_changed"] for row in resnet), outcomes.count("passed")
print(f"1. exact: {changed} of 10,000 predictions changed; {passed} networks of the sweep pass")
less, whole, cheap = [], [], []
for seed in range(3):
    attention = _accuracies("encodings/table/sa-quadratic", seed)
    less.append(attention[-1] - _accuracies("encodings/table/convnet", seed)[-1])
print(f"2. attention less convolutions at equal epochs, points: {_interval(less)}")
for seed in range(3, 13):
    folder = "speedrun/quarter/table" if seed < 6 else "speedrun/pairs"
    attention, conv = (_accuracies(f"{folder}/{one}", seed) for one in ("attention", "conv"))
    whole.append(attention[11] - conv[11])
    cheap.append(attention[5] - conv[11])  # nearly the operations of twelve epochs of convolutions
print(f"   a quarter of the width: {_interval(whole)}; at equal operations {_interval(cheap)}")
seven = sum(_taps(f"speedrun/quarter/grids/random-{seed}", 12) for seed in range(6, 13))
print(f"3. taps of the 3 x 3 kernel with a centre: {seven} of {7 * 54}")
print(f"4. heads of a trained ViT: {_read('trained_heads/vit-s.json')['words']['measured']}")
for case in _read("speed/layers.json")["cases"]:
    if case["name"] in {"hard-64", "quadratic-64-forward"}:
        times = {one["contender"]: one["seconds"] for one in case["measurements"]}
        ratios = [a / b for a, b in zip(times["convattn"], times["conv"], strict=True)]
        print(f"5. cost of {case['name']} by a convolution's: {median(ratios):.2f}")
assert (changed, passed, seven) == (0, 428, 137)
