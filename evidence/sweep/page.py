"""The sweep's page, made of its record alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from evidence.sweep.record import families

PAGE = """\
# Whole networks: one of each family

Does `network_to_attention` make the same function of a network, whatever network it is? One network of each family
of {homes} was converted ("others" are chosen networks of other libraries), with random weights, at its own image size,
in evaluation mode: once as softmax attention axis by axis in every layer (`impl="separable"`), once as planned
(`impl="auto"`, where hard heads run as a convolution). Both are compared with the network in float64.

{counts}

- **passed**: every layer and the network as a whole are within the [error budget](../explanation/error-budget.md), and
  on the separable path every layer that the image reached ran as separable softmax attention.
- **with leftovers**: of those passed, the networks in which a convolution is called as a function by a module that is
  no convolution. The certificate names them; the rest of the network is converted.
- **failed** and **crashed** are wrong results. **refused** networks raise an error that says why, and nothing is made.

Of each network that was converted as planned a copy has been made wrong on purpose, by changing the sign of the largest
weight of one layer amid it: {rejected} of {controls} copies are beyond the budget.{unmoved} {top1}
{vague}
## Networks

Error ÷ budget is the largest difference to float64 over all outputs, in units of what rounding explains; above 1 a
network fails. Budget ÷ largest is that budget in units of the largest output. Seconds are of conversion and certificate
together, on a machine that did other things as well.

{table}
{reasons}
## How it was measured

{starts}

Each family was measured at the revision of its own command, and not again after later changes. The same command goes
on where it was stopped, and passes over families that have a line; to measure a family anew, take its line out of
[networks.jsonl](../../evidence/sweep/networks.jsonl), which holds all numbers. This page is
made of that file by the same command.

Of each family of timm the architecture with the fewest parameters was taken that holds a convolution. n = 1 input per
network.

Not covered: trained weights, training mode, other inputs and image sizes, devices other than the CPU, dtypes other than
float32.
"""

_VAGUE = 0.01
"""Budget, as a share of the largest output, from which on the outputs show little."""

_WRONG = ("failed", "crashed", "too slow")

_FEW = 12
"""Most networks of one start that are named there."""


def page(lines: Sequence[dict[str, Any]]) -> str:
    """Words a record; every number comes from it.

    Args:
        lines: The record's lines.

    Returns:
        The page, in Markdown.
    """
    found = families(lines)
    homes = list(dict.fromkeys(line["home"] for line in found))
    controls = [
        path["control"]
        for line in found
        for path in line.get("paths", {}).values()
        if "control" in path
    ]
    unmoved = [line["model"] for line in found if _has_unmoved(line)]
    return PAGE.format(
        homes=_listed(homes),
        counts=_counts(found, homes),
        rejected=sum(control["rejected"] for control in controls),
        controls=len(controls),
        unmoved=f" Not so in {_listed(unmoved)}, where that weight hardly matters."
        if unmoved
        else "",
        vague=_vague(found),
        top1=_top1(found),
        table=_table(found),
        reasons=_reasons(found),
        starts=_starts(lines),
    )


def _vague(found: Sequence[dict[str, Any]]) -> str:
    """Names the networks that magnify rounding so much that their outputs show little."""
    names = [
        f"{line['model']} ({path['rounding'] / path['largest']:.2g})"
        for line in found
        if (path := line.get("paths", {}).get("auto", {})).get("rounding", 0)
        > _VAGUE * path.get("largest", 0)
    ]
    if not names:
        return ""
    return (
        "\nWith these weights some networks magnify rounding from layer to layer, in their own float32 as much as"
        f" in the converted one, until the budget is over {_VAGUE:.0%} of the largest output: {_listed(names)}. There"
        " the outputs prove little, and the layers' own checks carry the result.\n"
    )


def _has_unmoved(line: dict[str, Any]) -> bool:
    return any(
        not path["control"]["rejected"]
        for path in line.get("paths", {}).values()
        if "control" in path
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _left(line: dict[str, Any]) -> list[str]:
    """Lists what a network still holds of convolutions, on any path."""
    return list(
        dict.fromkeys(
            item for path in line.get("paths", {}).values() for item in path.get("left_alone", [])
        )
    )


def _counts(found: Sequence[dict[str, Any]], homes: Sequence[str]) -> str:
    """Counts outcomes by home."""
    rows = [[home, [line for line in found if line["home"] == home]] for home in homes]
    rows += [["all", list(found)]] if len(homes) > 1 else []
    heads = ["families", "passed", "with leftovers", "refused", *_WRONG, "without a convolution"]
    text = [
        f"| home | {' | '.join(heads)} | refused of those with one |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for home, lines in rows:
        outcomes = Counter(line["outcome"] for line in lines)
        leftovers = sum(line["outcome"] == "passed" and bool(_left(line)) for line in lines)
        without = outcomes["no convolution"]
        numbers = [
            len(lines),
            outcomes["passed"],
            leftovers,
            outcomes["refused"],
            *(outcomes[w] for w in _WRONG),
        ]
        share = outcomes["refused"] / max(1, len(lines) - without)
        text.append(f"| {home} | {' | '.join(map(str, [*numbers, without]))} | {share:.1%} |")
    return "\n".join(text)


def _top1(found: Sequence[dict[str, Any]]) -> str:
    """Words how often the prediction changed."""
    paths = [
        path for line in found for path in line.get("paths", {}).values() if path.get("top1_total")
    ]
    total, changed = (sum(path[key] for path in paths) for key in ("top1_total", "top1_changed"))
    return f"The largest score moved in {changed} of {total} predictions of converted networks."


def _table(found: Sequence[dict[str, Any]]) -> str:
    """Tabulates networks, one row each."""
    columns = ["home", "family", "network", "parameters", "input", "layers", "heads", "not reached"]
    columns += [
        "error ÷ budget, separable",
        "planned",
        "budget ÷ largest",
        "s, separable",
        "planned",
        "left alone",
        "outcome",
    ]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for line in found:
        paths = line.get("paths", {})
        one = next((path for path in paths.values() if "layers" in path), {})
        cells: list[Any] = [line["home"], line["family"], line.get("model", "–")]
        cells.append(f"{line['parameters'] / 1e6:.2f} M" if "parameters" in line else "–")
        cells.append(
            ", ".join("×".join(map(str, shape)) for shape in one["shapes"]) if one else "–"
        )
        cells += [
            one.get("layers", "–"),
            one.get("heads", "–"),
            one["used"].get("not reached", 0) if one else "–",
        ]
        cells += [_share(paths.get(impl, {})) for impl in ("separable", "auto")]
        cells.append(f"{one['rounding'] / one['largest']:.0e}" if one.get("largest") else "–")
        cells += [paths.get(impl, {}).get("seconds", "–") for impl in ("separable", "auto")]
        cells += [len(_left(line)) or "", line["outcome"]]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _share(path: dict[str, Any]) -> str:
    return f"{path['measured_error'] / path['rounding']:.2f}" if path.get("rounding") else "–"


def _reasons(found: Sequence[dict[str, Any]]) -> str:
    """Lists what did not pass, what is special, what was left alone, and what else the certificates say."""
    text = ""
    other = [line for line in found if line["outcome"] not in ("passed", "no convolution")]
    if other:
        text += "\n## Not passed\n\n"
        for line in other:
            reasons = [
                line.get("reason"),
                *(path.get("reason") for path in line.get("paths", {}).values()),
            ]
            reason = next(
                (" ".join(reason.split()) for reason in reasons if reason), "see the record"
            )
            text += f"- {line['home']} {line['family']}, {line.get('model', '–')}: {line['outcome']}. {reason}\n"
    remarks = [line for line in found if line.get("remark")]
    if remarks:
        text += "\n## Remarks\n\n"
        text += "".join(f"- {line['model']}: {line['remark']}\n" for line in remarks)
    with_left = [line for line in found if _left(line)]
    if with_left:
        text += "\n## Left alone\n\n"
        text += "".join(f"- {line['model']}: {'; '.join(_left(line))}\n" for line in with_left)
    said: dict[str, list[str]] = {}
    for line in found:
        for path in line.get("paths", {}).values():
            for note in (*path.get("notes", []), *path.get("not_covered", [])[2:]):
                said.setdefault(note, []).append(line["model"])
    if said:
        text += "\n## What the certificates say beside\n\n"
        text += "".join(
            f"- {note}: {', '.join(dict.fromkeys(names))}\n" for note, names in said.items()
        )
    return text


def _starts(lines: Sequence[dict[str, Any]]) -> str:
    """Words how the sweep was started, each setting once."""
    measured: dict[tuple[str, str], list[str]] = {}  # Families by command and setting
    current: list[str] = []
    for line in lines:
        if "started" not in line:
            current.append(line["family"])
            continue
        versions = ", ".join(f"{name} {number}" for name, number in line["versions"].items())
        hardware = f"{line['hardware']['processor']}, {line['hardware']['threads']} thread(s)"
        told = f"{line['started']}: {hardware}, {versions}, revision {line['revision']}. {line['networks']}"
        current = measured.setdefault((f"    {line['command']}", told), [])
    return "\n\n".join(
        f"{command}\n\n{_counted(names)} {told}" for (command, told), names in measured.items()
    )


def _counted(names: Sequence[str]) -> str:
    """Counts families, and names them if they are few."""
    named = f" ({', '.join(names)})" if 0 < len(names) <= _FEW else ""
    return f"{len(names)} famil{'y' if len(names) == 1 else 'ies'}{named}."
