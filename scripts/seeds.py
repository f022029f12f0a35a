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

OPTIONS = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
"""Types are checked by `make test`, and no number depends on it."""

FOLDERS = ("functional", "layers", "encodings", "convert", "heads", "models", "testing")
FAST = ["-m", "not slow", "-k", "not compile and not export"]
FAST += [f"tests/{folder}" for folder in FOLDERS]
SLOW = ["-m", "slow", "tests/convert/test_no_false_alarms.py"]


def run(setting: str, shift: int, further: list[str]) -> dict[str, Any]:
    """Runs the tests once, and returns what a line of the file holds."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[setting][0]}
    record = {"setting": setting, "shift": shift, "tests": 0, "skipped": 0, "failed": []}
    start = time.monotonic()
    for tests in (FAST, SLOW):
        with TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            words = [f"--seed-shift={shift}", f"--junitxml={report}", *further, *tests]
            command = [sys.executable, "-m", "pytest", *OPTIONS, *words]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            done = subprocess.run(
                command, cwd=ROOT, env=variables, text=True, check=False, **streams
            )
            ended = done.returncode in (0, 1, 5)  # 1: tests failed, 5: there were none
            if not ended or not report.exists():
                raise SystemExit(
                    f"{setting}, shift {shift}: pytest did not run\n{done.stdout[-3000:]}"
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
    lines = ["| setting | seeds | tests run | skipped | failed |", "|---|---|---|---|---|"]
    failures: dict[str, list[str]] = {}
    for setting in dict.fromkeys(record["setting"] for record in records):
        ours = [record for record in records if record["setting"] == setting]
        skipped = sum(record["skipped"] for record in ours)
        tests = sum(record["tests"] for record in ours) - skipped
        failed = sum(len(record["failed"]) for record in ours)
        lines.append(f"| {setting} | {len(ours)} | {tests} | {skipped} | {failed} |")
        for record in ours:
            for name in record["failed"]:
                failures.setdefault(name, []).append(f"{setting} {record['shift']}")
    lines.append("")
    lines += [f"- {name}: {', '.join(places)}" for name, places in sorted(failures.items())]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing, and prints the table; further options go to pytest, as --numprocesses=8."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", help="shifts in place of the usual ones")
    options, further = parser.parse_known_args(arguments)
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    records = [json.loads(line) for line in lines]
    there = {(record["setting"], record["shift"]) for record in records}
    for setting in options.settings:
        for shift in options.seeds or range(SETTINGS[setting][1]):
            if (setting, shift) in there:
                continue
            record = run(setting, shift, further)
            records.append(record)
            with options.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
            sys.stderr.write(f"{setting}, shift {shift}: {len(record['failed'])} failed\n")
    sys.stdout.write(table(records) + "\n")
    return int(any(record["failed"] for record in records))


if __name__ == "__main__":
    sys.exit(main())
