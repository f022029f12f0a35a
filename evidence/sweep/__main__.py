"""Converts one network of every family of several homes, on both paths, and writes down what came of it.

    python -m evidence.sweep [--homes timm] [--families resnet convnext] [--seconds 900]
    python -m evidence.sweep --list networks.json --code FOLDER --record networks.jsonl

Each network has a process of its own. The record has one line of JSON for each, and one for each start of the sweep,
with versions and hardware; families that have a line already are passed over, so the same command goes on where it was
stopped. Writes networks.jsonl, or the record that is named. A list of other people's code is as README.md says.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from evidence.results import environment, new_parser
from evidence.sweep.homes import HOMES, home
from evidence.sweep.page import RECORD, families, read
from evidence.sweep.randomise import HOW


def main() -> None:
    """Runs what is missing of the sweep."""
    parser = new_parser(__doc__)
    parser.add_argument("--homes", nargs="*", choices=list(HOMES), default=list(HOMES))
    parser.add_argument("--list", type=Path, help="a list of networks, instead of homes")
    parser.add_argument("--code", type=Path, help="folder of the repositories of the list")
    parser.add_argument("--families", nargs="*", help="names of families; all by default")
    parser.add_argument("--seconds", type=float, default=900.0, help="time of one network at most")
    parser.add_argument("--record", type=Path, default=RECORD, help="file of the results")
    options = parser.parse_args()
    record = options.record
    done = {(line["home"], line["family"]) for line in families(read(record))}
    places = options.homes if options.list is None else [str(options.list.resolve())]
    code = [] if options.code is None else [str(options.code.resolve())]
    missing = []
    for place in places:
        at = home(place, *code)
        for family in at.families():
            wanted = options.families is None or family in options.families
            if wanted and (at.name, family) not in done:
                missing.append((place, at.name, family))
    if missing:
        append(start(places), record)
    for place, name, family in missing:
        line = in_its_own_process(place, family, options.seconds, *code)
        append({**line, "home": name}, record)
        print(name, family, line["outcome"], line.get("model"), line.get("reason"), flush=True)


def append(line: dict[str, Any], record: Path) -> None:
    """Adds a line to a record."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def start(places: Sequence[str]) -> dict[str, Any]:
    """Describes a start of the sweep of some homes."""
    distributions = metadata.packages_distributions()
    packages: list[str] = []
    for place in places:
        for package in home(place).packages:
            packages += distributions.get(package, [])
    started = datetime.now(UTC).strftime("%Y-%m-%d")
    return {"started": started, **environment(__file__, *packages), "networks": HOW}


def in_its_own_process(place: str, family: str, seconds: float, *code: str) -> dict[str, Any]:
    """Converts a family's network in a child process, so that one that fails or takes too long costs no other.

    Args:
        place: Name of the home, or the path of its list.
        family: Name of the family.
        seconds: Time that it may take.
        *code: Folder of the repositories of a list, if it has one.

    Returns:
        Its line, in any case.
    """
    line = {"home": place, "family": family}
    command = [sys.executable, "-m", "evidence.sweep.convert", place, family, *code]
    try:
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return {**line, "outcome": "too slow", "reason": f"over {seconds:g} seconds"}
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        return {**line, "outcome": "crashed", "reason": reason}
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
