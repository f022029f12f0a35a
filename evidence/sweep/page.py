"""The sweep's tables, made of its record alone: a line of JSON for each start of the sweep, and one for each family."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convattn.lab.tables import markdown_table
from evidence.results import versions_in_words

RECORD = Path(__file__).with_name("networks.jsonl")

VAGUE = 0.01
"""Budget, as a share of the largest output, from which on the outputs show little."""

_WRONG = ("failed", "crashed", "too slow")

_FEW = 12
"""Most networks of one start that are named there."""

Line = dict[str, Any]


def read(record: Path) -> list[Line]:
    """Reads the lines of a record, which may be missing."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def families(lines: Sequence[Line]) -> list[Line]:
    """Keeps the lines of families, which are not of a start."""
    return [line for line in lines if "family" in line]


def swept() -> list[Line]:
    """Lists the families of the record."""
    return families(read(RECORD))


def by_package(networks: Sequence[Line]) -> dict[str, list[Line]]:
    """Sorts networks by the first word of their names, which is the package that they are from."""
    groups: dict[str, list[Line]] = {}
    for line in networks:
        groups.setdefault(re.split(r"\W", line["family"])[0], []).append(line)
    return groups


def paths(networks: Sequence[Line]) -> list[Line]:
    """Lists what all ways of all networks gave; nothing where none was tried."""
    return [path for line in networks for path in line.get("paths", {}).values()]


def controls(networks: Sequence[Line]) -> list[Line]:
    """Lists the wrong copies of networks."""
    return [path["control"] for path in paths(networks) if "control" in path]


def unrejected(networks: Sequence[Line]) -> list[str]:
    """Lists the networks whose wrong copy was not found."""

    def found(line: Line) -> bool:
        return all(control["rejected"] for control in controls([line]))

    return [line["model"] for line in networks if not found(line)]


def vague(networks: Sequence[Line]) -> list[str]:
    """Names the networks that magnify rounding so much that their outputs show little."""
    names = []
    for line in networks:
        path = line.get("paths", {}).get("auto", {})
        share = path["rounding"] / path["largest"] if path.get("largest") else 0
        if share > VAGUE:
            names.append(f"{line['model']} ({share:.2g})")
    return names


def left(line: Line) -> list[str]:
    """Lists what a network still holds of convolutions, on any path."""
    names: dict[str, None] = {}
    for path in paths([line]):
        names |= dict.fromkeys(path.get("left_alone", []))
    return list(names)


def tally(networks: Sequence[Line], home: str) -> dict[str, int]:
    """Counts the outcomes of a home, or of all."""
    lines = [line for line in networks if home in (line["home"], "all")]
    outcomes = Counter(line["outcome"] for line in lines)
    leftovers = sum(line["outcome"] == "passed" and bool(left(line)) for line in lines)
    return {
        "families": len(lines),
        "passed": outcomes["passed"],
        "with leftovers": leftovers,
        "refused": outcomes["refused"],
        **{word: outcomes[word] for word in _WRONG},
        "without a convolution": outcomes["no convolution"],
    }


def counts(networks: Sequence[Line]) -> str:
    """Tabulates outcomes by home."""
    rows, heads = [], list[str]()
    for home in [*dict.fromkeys(line["home"] for line in networks), "all"]:
        row = tally(networks, home)
        heads = ["home", *row, "refused of those with one"]
        share = row["refused"] / max(1, row["families"] - row["without a convolution"])
        rows.append([home, *map(str, row.values()), f"{share:.1%}"])
    return markdown_table(heads, rows)


def top1(ways: Sequence[Line]) -> tuple[int, int]:
    """Counts how often a prediction changed, and predictions."""
    told = [path for path in ways if path.get("top1_total")]
    changed = sum(path["top1_changed"] for path in told)
    return changed, sum(path["top1_total"] for path in told)


def table(networks: Sequence[Line]) -> str:
    """Tabulates networks, one row each."""
    heads = ["home", "family", "network", "parameters", "input", "layers", "heads", "not reached"]
    heads += ["error ÷ budget, separable", "planned", "back", "trained", "budget ÷ largest"]
    heads += ["s, separable", "planned", "back", "trained", "left alone", "outcome"]
    return markdown_table(heads, map(_row, networks))


def _row(line: Line) -> list[str]:
    """Words one network; what was not measured is a dash."""
    paths = line.get("paths", {})
    ways = [paths.get(way, {}) for way in ("separable", "auto", "back", "step")]
    cells: list[Any] = [line["home"], line["family"], line.get("model", "–")]
    cells.append(f"{line['parameters'] / 1e6:.2f} M" if "parameters" in line else "–")
    one = next((path for path in paths.values() if "layers" in path), None)
    if one is None:
        cells += ["–"] * 4
    else:
        cells.append(", ".join("×".join(map(str, shape)) for shape in one["shapes"]))
        cells += [one["layers"], one["heads"], one["used"].get("not reached", 0)]
    cells += map(_share, ways)
    largest = one.get("largest") if one else None
    cells.append(f"{one['rounding'] / largest:.0e}" if one and largest else "–")
    cells += [path.get("seconds", "–") for path in ways]
    return list(map(str, [*cells, len(left(line)) or "", line["outcome"]]))


def _share(path: Line) -> str:
    return f"{path['measured_error'] / path['rounding']:.2f}" if path.get("rounding") else "–"


def sections(networks: Sequence[Line]) -> dict[str, list[str]]:
    """Lists what did not pass, what is special, what was left alone, and what else the certificates say."""
    titles = ("Not passed", "Remarks", "Left alone")
    listed: dict[str, list[str]] = {title: [] for title in titles}
    notes: dict[str, dict[str, None]] = {}
    for line in networks:
        name = line.get("model", "–")
        if line["outcome"] not in ("passed", "no convolution"):
            reasons = [line.get("reason")]
            for path in paths([line]):
                reasons.append(path.get("reason"))
                if (path.get("measured_error") or 0) > (path.get("rounding") or 0):
                    off = f"{path['measured_error']:.2g}, rounding explains {path['rounding']:.2g}"
                    reasons.append(f"it is off by {off}")
                elif path["outcome"] == "failed":
                    reasons += path.get("not_covered", [])[-1:]
            reason = next(filter(None, reasons), "see the record")
            words = f"{line['home']} {line['family']}, {name}: {line['outcome']}"
            listed["Not passed"].append(f"{words}. {' '.join(reason.split())}")
        if line.get("remark"):
            listed["Remarks"].append(f"{name}: {line['remark']}")
        if left(line):
            listed["Left alone"].append(f"{name}: {'; '.join(left(line))}")
        for path in paths([line]):
            for note in (*path.get("notes", []), *path.get("not_covered", [])[2:]):
                notes.setdefault(note, {})[name] = None
    beside = [f"{note}: {', '.join(names)}" for note, names in notes.items()]
    listed["What the certificates say beside"] = beside
    return {title: items for title, items in listed.items() if items}


def starts(lines: Sequence[Line]) -> str:
    """Words how the sweep was started, each setting once."""
    settings: dict[tuple[str, str], list[str]] = {}  # Families by command and setting
    current: list[str] = []
    for line in lines:
        if "started" not in line:
            current.append(line["family"])
            continue
        hardware = f"{line['hardware']['processor']}, {line['hardware']['threads']} thread(s)"
        facts = f"{hardware}, {versions_in_words(line)}, revision {line['revision']}"
        words = f"{line['started']}: {facts}. {line['networks']}"
        current = settings.setdefault((f"    {line['command']}", words), [])
    parts = []
    for (command, words), names in settings.items():
        parts.append(f"{command}\n\n{_counted(names)} {words}")
    return "\n\n".join(parts)


def _counted(names: Sequence[str]) -> str:
    """Counts families, and names them if they are few."""
    named = f" ({', '.join(names)})" if 0 < len(names) <= _FEW else ""
    return f"{len(names)} famil{'y' if len(names) == 1 else 'ies'}{named}."
