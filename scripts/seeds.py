"""Runs the numeric tests with other random inputs, as the machine is and kept to other code of torch.

Use: python scripts/seeds.py -o runs.jsonl. Every seed of torch, numpy and hypothesis is shifted by one number (pytest
--seed-shift): as the machine is by 20, in each of the other settings by five. A run is a line of JSON in the file; runs
that are there are not repeated, so that what was interrupted goes on. In the end a table of all runs in the file is
printed. The exit code is 1 if a test failed in any of them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
SETTINGS: dict[str, tuple[dict[str, str], int]] = {
    "plain": ({}, 20),
    "avx2": (AVX2, 5),
    "sse41": ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, 5),
    "compatible": ({"MKL_CBWR": "COMPATIBLE"}, 5),
    "two-threads": ({"OMP_NUM_THREADS": "2"}, 5),
}
"""Environment and number of seeds of each setting."""

FOLDERS = ["functional", "layers", "encodings", "convert", "adapters", "models", "testing"]
UNCHECKED = ["-o", "addopts=--import-mode=importlib"]
"""Options in place of those in pyproject.toml: types are checked by `make test`, and no number depends on it."""

FAST = [
    "-m",
    "not slow",
    "-k",
    "not compile and not export",
    *(f"tests/{folder}" for folder in FOLDERS),
]
SLOW = ["-m", "slow", "tests/convert/test_no_false_alarms.py"]


def run(setting: str, shift: int, further: list[str]) -> dict[str, Any]:
    """Runs the tests once, and returns what a line of the file holds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[setting][0]}
    record: dict[str, Any] = {
        "setting": setting,
        "shift": shift,
        "tests": 0,
        "skipped": 0,
        "failed": [],
    }
    start = time.monotonic()
    for chosen in (FAST, SLOW):
        if not (ROOT / chosen[-1]).exists():
            continue
        with TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            options = [
                "-q",
                f"--seed-shift={shift}",
                f"--junitxml={report}",
                "-p",
                "no:cacheprovider",
                *further,
            ]
            command = [sys.executable, "-m", "pytest", *UNCHECKED, *options, *chosen]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            if (
                done.returncode not in (0, 1, 5) or not report.exists()
            ):  # 1: tests failed, 5: there were none
                raise SystemExit(
                    f"{setting}, shift {shift}: pytest did not run\n{done.stdout[-3000:]}{done.stderr}"
                )
            count(record, report)
    return record | {"seconds": round(time.monotonic() - start)}


def count(record: dict[str, Any], report: Path) -> None:
    """Adds the tests of a report to a record."""
    for case in ET.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case}
        record["tests"] += 1
        record["skipped"] += "skipped" in outcomes
        if outcomes & {"failure", "error"}:
            record["failed"].append(f"{case.get('classname')}::{case.get('name')}")


def table(records: list[dict[str, Any]]) -> str:
    """Writes a row per setting in Markdown, then the tests that failed, with the shifts at which they did."""
    rows = ["| setting | seeds | tests run | skipped | failed |", "|---|---|---|---|---|"]
    failures: dict[str, list[str]] = {}
    for setting in dict.fromkeys(record["setting"] for record in records):
        ours = [record for record in records if record["setting"] == setting]
        skipped = sum(record["skipped"] for record in ours)
        ran, failed = (
            sum(record["tests"] for record in ours) - skipped,
            sum(len(record["failed"]) for record in ours),
        )
        rows.append(f"| {setting} | {len(ours)} | {ran} | {skipped} | {failed} |")
        for record in ours:
            for name in record["failed"]:
                failures.setdefault(name, []).append(f"{setting} {record['shift']}")
    return "\n".join(
        [*rows, "", *(f"- {name}: {', '.join(where)}" for name, where in sorted(failures.items()))]
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing, and prints the table; further options go to pytest, as --numprocesses=8."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="file of JSON lines, one per run"
    )
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="which settings"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="shifts to run in place of those of each setting"
    )
    given, further = parser.parse_known_args(arguments)
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    records = [json.loads(line) for line in lines]
    there = {(record["setting"], record["shift"]) for record in records}
    for setting in given.settings:
        for shift in range(SETTINGS[setting][1]) if given.seeds is None else given.seeds:
            if (setting, shift) in there:
                continue
            records.append(run(setting, shift, further))
            with given.output.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
            sys.stderr.write(f"{setting}, shift {shift}: {len(records[-1]['failed'])} failed\n")
    sys.stdout.write(table(records) + "\n")
    return int(any(record["failed"] for record in records))


if __name__ == "__main__":
    sys.exit(main())
