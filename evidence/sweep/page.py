"""The sweep's page, made of its record alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from convattn.lab.tables import markdown_table
from evidence.results import versions_in_words
from evidence.sweep.record import families

PAGE = """\
# Whole networks: one of each family

Does `network_to_attention` make the same function of a network, whatever network it is? One network of each family
of {homes} was converted ("others" are chosen networks of other libraries, "libraries" many networks of libraries for
pictures, medical volumes and sound, small and on small inputs), with random weights, in evaluation mode: as planned
(`impl="auto"`, where hard heads run as a convolution), and, but for "libraries", as softmax attention axis by axis in
every layer (`impl="separable"`). Those of "libraries" then come back with `network_to_conv`. Each is compared with what
it was made from, in float64.

{counts}

- **passed**: every layer and the network as a whole are within the [error budget](../explanation/error-budget.md), and
  on the separable path every layer that the image reached ran as separable softmax attention.
- **with leftovers**: of those passed, the networks in which a convolution stays as it is. The certificate names it and
  says why; the rest of the network is converted.
- **failed** and **crashed** are wrong results. **refused** networks raise an error that says why, and nothing is made.

Of each network that was converted as planned a copy has been made wrong on purpose, by changing the sign of the largest
weight of one layer amid it: {rejected} of {controls} copies are beyond the budget.{unmoved} {top1}
{returned}{vague}
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
    """Words a record, in Markdown; every number comes from its lines."""
    networks = families(lines)
    homes = list(dict.fromkeys(line["home"] for line in networks))
    controls, unmoved = [], []
    for line in networks:
        own = [path["control"] for path in _paths(line) if "control" in path]
        controls += own
        if not all(control["rejected"] for control in own):
            unmoved.append(line["model"])
    rest = (
        f" Not so in {_listed(unmoved)}, where that weight moves the outputs by nothing, or by less than rounding may."
        if unmoved
        else ""
    )
    return PAGE.format(
        homes=_listed(homes),
        counts=_counts(networks, homes),
        rejected=sum(control["rejected"] for control in controls),
        controls=len(controls),
        unmoved=rest,
        returned=_returned(networks),
        vague=_vague(networks),
        top1=_top1(networks),
        table=_table(networks),
        reasons=_reasons(networks),
        starts=_starts(lines),
    )


def _paths(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Lists what all ways of a network gave; nothing where none was tried."""
    return list(line.get("paths", {}).values())


def _vague(networks: Sequence[dict[str, Any]]) -> str:
    """Names the networks that magnify rounding so much that their outputs show little."""
    names = []
    for line in networks:
        path = line.get("paths", {}).get("auto", {})
        share = path["rounding"] / path["largest"] if path.get("largest") else 0
        if share > _VAGUE:
            names.append(f"{line['model']} ({share:.2g})")
    if not names:
        return ""
    return (
        "\nWith these weights some networks magnify rounding from layer to layer, in their own float32 as much as"
        f" in the converted one, until the budget is over {_VAGUE:.0%} of the largest output: {_listed(names)}. There"
        " the outputs prove little, and the layers' own checks carry the result.\n"
    )


def _listed(words: Sequence[str]) -> str:
    first = ", ".join(words[:-1])
    return f"{first} and {words[-1]}" if first else words[-1]


def _left(line: dict[str, Any]) -> list[str]:
    """Lists what a network still holds of convolutions, on any path."""
    names: dict[str, None] = {}
    for path in _paths(line):
        names |= dict.fromkeys(path.get("left_alone", []))
    return list(names)


def _counts(networks: Sequence[dict[str, Any]], homes: Sequence[str]) -> str:
    """Counts outcomes by home."""
    groups = {home: [line for line in networks if line["home"] == home] for home in homes}
    if len(homes) > 1:
        groups["all"] = list(networks)
    rows = []
    for home, lines in groups.items():
        outcomes = Counter(line["outcome"] for line in lines)
        leftovers = sum(line["outcome"] == "passed" and bool(_left(line)) for line in lines)
        without = outcomes["no convolution"]
        numbers = [len(lines), outcomes["passed"], leftovers, outcomes["refused"]]
        numbers += [*(outcomes[word] for word in _WRONG), without]
        share = outcomes["refused"] / max(1, len(lines) - without)
        rows.append([home, *map(str, numbers), f"{share:.1%}"])
    heads = ["families", "passed", "with leftovers", "refused", *_WRONG, "without a convolution"]
    return markdown_table(["home", *heads, "refused of those with one"], rows)


def _top1(networks: Sequence[dict[str, Any]]) -> str:
    """Words how often the prediction changed."""
    total = changed = 0
    for line in networks:
        for path in _paths(line):
            if path.get("top1_total"):
                total += path["top1_total"]
                changed += path["top1_changed"]
    return f"The largest score moved in {changed} of {total} predictions of converted networks."


def _returned(networks: Sequence[dict[str, Any]]) -> str:
    """Counts the networks that came back with the weights that they had."""
    ways = [line.get("paths", {}).get("back", {}) for line in networks]
    back = [way["same_weights"] for way in ways if "same_weights" in way]
    if not back:
        return ""
    others = "; in the others some weight is computed, or another module's, and its present value came back"
    rest = "" if all(back) else others
    return f"\nOf {len(back)} networks converted back, {sum(back)} have all their weights as they were{rest}.\n"


def _table(networks: Sequence[dict[str, Any]]) -> str:
    """Tabulates networks, one row each."""
    heads = ["home", "family", "network", "parameters", "input", "layers", "heads", "not reached"]
    heads += ["error ÷ budget, separable", "planned", "back", "budget ÷ largest"]
    heads += ["s, separable", "planned", "back", "left alone", "outcome"]
    return markdown_table(heads, map(_row, networks))


def _row(line: dict[str, Any]) -> list[str]:
    """Words one network; what was not measured is a dash."""
    paths = line.get("paths", {})
    ways = [paths.get(way, {}) for way in ("separable", "auto", "back")]
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
    return list(map(str, [*cells, len(_left(line)) or "", line["outcome"]]))


def _share(path: dict[str, Any]) -> str:
    return f"{path['measured_error'] / path['rounding']:.2f}" if path.get("rounding") else "–"


def _reasons(networks: Sequence[dict[str, Any]]) -> str:
    """Lists what did not pass, what is special, what was left alone, and what else the certificates say."""
    failed, remarks, left = list[str](), list[str](), list[str]()
    notes: dict[str, dict[str, None]] = {}
    for line in networks:
        name = line.get("model", "–")
        if line["outcome"] not in ("passed", "no convolution"):
            reasons = [line.get("reason"), *(path.get("reason") for path in _paths(line))]
            reason = next(filter(None, reasons), "see the record")
            words = f"{line['home']} {line['family']}, {name}: {line['outcome']}"
            failed.append(f"{words}. {' '.join(reason.split())}")
        if line.get("remark"):
            remarks.append(f"{name}: {line['remark']}")
        if _left(line):
            left.append(f"{name}: {'; '.join(_left(line))}")
        for path in _paths(line):
            for note in (*path.get("notes", []), *path.get("not_covered", [])[2:]):
                notes.setdefault(note, {})[name] = None
    text = ""
    sections = {
        "Not passed": failed,
        "Remarks": remarks,
        "Left alone": left,
        "What the certificates say beside": [
            f"{note}: {', '.join(names)}" for note, names in notes.items()
        ],
    }
    for title, items in sections.items():
        if items:
            text += f"\n## {title}\n\n" + "".join(f"- {item}\n" for item in items)
    return text


def _starts(lines: Sequence[dict[str, Any]]) -> str:
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
