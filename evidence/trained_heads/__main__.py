"""What trained networks look at, and whether it is what they live on: one network, by the protocol beside.

    python -m evidence.trained_heads clip --photographs FOLDER --digits FOLDER --work WORK

The folders hold photographs.parquet, files of 256 × 256 pixels with their classes, and spoken-digits.parquet; the task
of CLIP needs CONVATTN_CIFAR10. Packages with weights are fetched into the work folder. Rows that are finished stay in
WORK/NETWORK.jsonl, and a run that is stopped goes on after them; the record NETWORK.json is written at the end, and
holds the parts that were run to theirs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.measure import ratios, time_rounds
from convattn import analyze
from convattn.files import write_atomically
from convattn.heads.head_report import SHUFFLED, UNTRAINED, HeadReport
from convattn.heads.jackknife import Estimate
from convattn.heads.mean_maps import mean_maps
from convattn.heads.untrained import untrained
from convattn.heads.verdict import CONVOLUTION, NEIGHBOUR, HeadVerdict, count_words
from evidence.results import environment, new_parser
from evidence.trained_heads import arms
from evidence.trained_heads.arms import Head, altered
from evidence.trained_heads.networks import LOADERS, Trained, alike, load
from evidence.trained_heads.page import BEFORE, CHOSEN, INPUTS
from evidence.trained_heads.reports import by_score, kept_report

DRAWS, CURVE, CURVE_DRAWS = 20, 10, 5
"""Draws of a random arm; test inputs of the curve, and its draws."""

COUNTS = (2, 4, 16, 32)
"""Heads that are replaced for the curve, beside the chosen ones."""

KEPT = 12
"""Inputs of the control with trained positions."""


@dataclass
class Study:
    """One network, and the rows that are finished."""

    name: str
    trained: Trained
    work: Path

    @cached_property
    def report(self) -> HeadReport:
        """The heads as measured on the first inputs, with controls."""

        def measure(network: nn.Module) -> HeadReport:
            return analyze(network, self.trained.fitted, radius=self.trained.reach, progress=False)

        return kept_report(self.work / f"{self.name}.report.json", self.trained.network, measure)

    @cached_property
    def positions_kept(self) -> HeadReport:
        """The heads where weights are drawn anew, but those of positions."""

        def measure(network: nn.Module) -> HeadReport:
            inputs = self.trained.fitted[:KEPT]
            return analyze(network, inputs, radius=0, controls=(), progress=False)

        network = untrained(self.trained.network, 0)
        start = network.state_dict()
        for place, weight in self.trained.network.named_parameters():
            if "position" in place:
                start[place].copy_(weight.detach())
        return kept_report(self.work / f"{self.name}.positions.json", network.eval(), measure)

    @cached_property
    def maps(self) -> dict[str, Tensor]:
        """Mean weights by layer over the first inputs."""
        file = self.work / f"{self.name}.maps.pt"
        if not file.is_file():
            torch.save(mean_maps(self.trained.network, self.trained.fitted), file)
        return torch.load(file)

    @cached_property
    def order(self) -> list[Head]:
        """The heads, the highest position score first."""
        return by_score(self.report)

    @cached_property
    def before(self) -> "States":
        """What the network gives as it is."""
        return States(self.trained)

    @property
    def file(self) -> Path:
        """Where finished rows are."""
        return self.work / f"{self.name}.jsonl"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that are finished."""
        if not self.file.is_file():
            return []
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]

    def row(self, arm: str, heads: Sequence[Head], inputs: Sequence[int], **key: Any) -> None:
        """Measures a row, unless it is finished."""
        key = {"arm": arm, **key}
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return
        draw = key.get("draw", 0)
        network = altered(self.trained.network, self.report, self.maps, heads, arm, draw)
        named = arms.matched(self.report, heads, draw) if arm == arms.OTHERS else heads
        kept = self.before.compared(network, named, inputs)
        self.keep({**key, "inputs": list(inputs), **kept})

    def keep(self, row: dict[str, Any]) -> None:
        """Keeps a finished row."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)
        shown = {}
        for name, value in row.items():
            if isinstance(value, list) and value and isinstance(value[0], float):
                shown[name] = round(fmean(value), 4)
            elif name != "inputs":
                shown[name] = value
        print(self.name, shown, flush=True)


class Given(nn.Module):
    """Stands for a block whose output is known."""

    def __init__(self) -> None:
        """Starts without states: passes on what it is given."""
        super().__init__()
        self.states: Tensor | None = None

    def forward(self, states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Returns its states."""
        return states if self.states is None else self.states


class States:
    """Features and states of a network on the test inputs, and what another one keeps of them."""

    @torch.inference_mode()
    def __init__(self, trained: Trained) -> None:
        """Runs the network."""
        self.trained = trained
        self.blocks: list[list[Tensor]] = []
        network = trained.network
        hooks = []
        if trained.blocks:
            blocks = network.get_submodule(trained.blocks)
            self.blocks = [[] for _ in blocks.children()]
            for states, block in zip(self.blocks, blocks.children(), strict=True):

                def keep(_: Any, __: Any, out: Tensor, states: list[Tensor] = states) -> None:
                    states.append(out)

                hooks.append(block.register_forward_hook(keep))
        parts = [trained.features(network, part) for part in trained.tested.split(trained.batch)]
        for hook in hooks:
            hook.remove()
        self.features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.states = [torch.cat(states) for states in self.blocks]
        self.blocks = []

    @torch.inference_mode()
    def compared(
        self, network: nn.Module, heads: Sequence[Head], inputs: Sequence[int]
    ) -> dict[str, Any]:
        """Compares the features of another network, of which blocks before the first of some heads are the same."""
        trained = self.trained
        given = self._shortened(network, heads)
        found: dict[str, Any] = {"feature": [], "tokens": []}
        for some in torch.tensor(inputs).split(trained.batch):
            if given is not None:
                block, last = given
                last.states = self.states[block][some]
            after = trained.features(network, trained.tested[some])
            for name in ("feature", "tokens"):
                found[name] += alike(after[name], self.features[name][some])
            if "logits" in after:
                same = after["logits"].argmax(-1) == self.features["logits"][some].argmax(-1)
                found["same"] = found.get("same", []) + same.long().tolist()
        return found

    def _shortened(self, network: nn.Module, heads: Sequence[Head]) -> tuple[int, Given] | None:
        """Takes blocks before the first of some heads out; returns the last of them, whose states are to be given."""
        if not self.trained.blocks:
            return None
        before = len(self.trained.blocks.split("."))
        first = min(int(name.split(".")[before]) for name, _ in heads)
        if first == 0:
            return None
        blocks: Any = network.get_submodule(self.trained.blocks)
        last = Given()
        for number in range(first):
            blocks[number] = last if number == first - 1 else Given()
        return first - 1, last


def words(study: Study) -> None:
    """Measures the heads, as they are and in controls."""
    for report in (study.report, study.positions_kept):
        print(study.name, report.summary(), flush=True)


def cause(study: Study) -> None:
    """Replaces the chosen heads by every arm."""
    heads = study.order[:CHOSEN]
    plain = (arms.OWN, *arms.turns(study.report), arms.MEAN, arms.ZERO, arms.UNIFORM, arms.TAP)
    for arm in plain:
        study.row(arm, heads, range(INPUTS), part="cause")
    for arm in (arms.ANOTHER, arms.OTHERS):
        for draw in range(DRAWS):
            study.row(arm, heads, range(draw, INPUTS, DRAWS), part="cause", draw=draw)


def alone(study: Study) -> None:
    """Replaces each head alone by its own kernel."""
    for head in study.order:
        study.row(arms.OWN, [head], range(study.trained.alone), part="alone", head=list(head))


def curve(study: Study) -> None:
    """Replaces more and more heads by every arm."""
    plain = (arms.OWN, arms.half_turn(study.report), arms.MEAN, arms.ZERO, arms.UNIFORM, arms.TAP)
    for count in COUNTS:
        heads = study.order[:count]
        if len(heads) < count:
            break
        for arm in plain:
            study.row(arm, heads, range(CURVE), part="curve", replaced=count)
        for arm in (arms.ANOTHER, arms.OTHERS):
            for draw in range(CURVE_DRAWS):
                inputs = range(draw, CURVE, CURVE_DRAWS)
                study.row(arm, heads, inputs, part="curve", replaced=count, draw=draw)


def finished(study: Study, part: str) -> list[dict[str, Any]]:
    """Returns the rows of a part, without its name."""
    rows = [row for row in study.rows if row["part"] == part]
    return [{key: value for key, value in row.items() if key != "part"} for row in rows]


def heads_of(study: Study) -> list[dict[str, Any]]:
    """Returns the word, the numbers and the controls of every head; errors stand second."""
    heads = []
    pairs = zip(study.report.layers, study.positions_kept.layers, strict=True)
    for depth, (layer, kept) in enumerate(pairs, start=1):
        verdicts = {name: layer.verdicts_in(name) for name in CONTROLS}
        for head, verdict, same in zip(layer.heads, layer.verdicts, kept.heads, strict=True):
            number = head.head
            row: dict[str, Any] = {"name": layer.name, "layer": depth, "head": number + 1}
            row |= {"grid": list(layer.grid), "verdict": str(verdict)}
            row["shift"] = list(head.hard_shift)
            row["share"] = _rounded(head.hard_share)
            row["score"] = _rounded(head.position_score)
            row["distance"] = round(head.distance.value, 4)
            row["kept"] = [str(kept.verdicts[number]), _rounded(same.position_score)[0]]
            for control, name in CONTROLS.items():
                measured = layer.controls.get(control)
                if measured is not None:
                    score = measured.heads[number].position_score
                    row[name] = [str(verdicts[control][number]), _rounded(score)[0]]
            heads.append(row)
    return heads


CONTROLS = {UNTRAINED: "untrained", SHUFFLED: "shuffled"}
"""Controls of an analysis, and what the record calls them."""


def _rounded(estimate: Estimate) -> list[float]:
    return [round(estimate.value, 4), round(estimate.error, 4)]


def alone_of(study: Study) -> list[dict[str, Any]]:
    """Returns the damage of each head that was replaced alone."""
    rows = []
    for row in finished(study, "alone"):
        damage = 1 - sum(row["feature"]) / len(row["feature"])
        rows.append({"head": row["head"], "damage": round(damage, 7)})
    return rows


BOOTSTRAP = 10_000
"""Draws of the heads."""


def rule_two(study: Study, damages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Computes rank correlations of the damage over heads, and the interval of rule 2."""
    numbers = []
    for row in damages:
        name, number = row["head"]
        head = study.report.layer(name).heads[number]
        numbers.append((row["damage"], head.position_score.value, head.distance.value))
    table = np.array(numbers)
    picks = np.random.default_rng(0).integers(len(table), size=(BOOTSTRAP, len(table)))
    score, distance = (_correlations(table[picks, 0], table[picks, one]) for one in (1, 2))
    low, high = np.quantile(-score - distance, (0.025, 0.975))
    return {
        "inputs": study.trained.alone,
        "score": round(float(_correlations(table[None, :, 0], table[None, :, 1])[0]), 4),
        "distance": round(float(_correlations(table[None, :, 0], table[None, :, 2])[0]), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
    }


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns Spearman's rank correlation of each row of two tables."""
    ranks = [stats.rankdata(table, axis=1) for table in (one, other)]
    centred = [table - table.mean(1, keepdims=True) for table in ranks]
    squares = [(table**2).sum(1) for table in centred]
    return (centred[0] * centred[1]).sum(1) / np.sqrt(squares[0] * squares[1])


def record(study: Study) -> dict[str, Any]:
    """Returns what is known of a network; parts that were not run to their end are left out."""
    report = study.report
    counts = {"measured": count_words(_verdicts(report, None))}
    counts |= {name: count_words(_verdicts(report, control)) for control, name in CONTROLS.items()}
    counts["kept"] = count_words(_verdicts(study.positions_kept, None))
    content: dict[str, Any] = {
        **environment(__file__, "transformers"),
        "command": f"python -m evidence.trained_heads {study.name} {_FOLDERS}",
        "title": study.trained.title,
        "about": study.trained.about,
        "images": report.images,
        "control_images": report.control_images,
        "kept_images": study.positions_kept.images,
        "words": counts,
        "chosen": study.order[:CHOSEN],
        "parts": ["words"],
        "heads": heads_of(study),
        "cause": finished(study, "cause"),
        "alone": alone_of(study),
        "curve": finished(study, "curve"),
        "sizes": finished(study, "sizes"),
        "tasks": finished(study, "tasks"),
    }
    needed = {
        "cause": len(arms.turns(report)) + 5 + 2 * DRAWS,
        "alone": len(study.order),
        "curve": sum(count <= len(study.order) for count in COUNTS) * (6 + 2 * CURVE_DRAWS),
        "sizes": 4 * len(SIZES),
        "tasks": 7,
    }
    for part, rows in needed.items():
        if len(content[part]) == rows:
            content["parts"].append(part)
        else:
            content[part] = []
    if content["alone"]:
        content["rule_two"] = rule_two(study, content["alone"])
    return content


_FOLDERS = "--photographs FOLDER --digits FOLDER --work WORK"


def _verdicts(report: HeadReport, control: str | None) -> list[HeadVerdict]:
    """Lists the verdicts of all heads, as measured or in a control."""
    verdicts: list[HeadVerdict] = []
    for layer in report.layers:
        verdicts += layer.verdicts if control is None else layer.verdicts_in(control)
    return verdicts


def write(file: Path, content: dict[str, Any]) -> None:
    """Writes a record: a line for each number, head and row."""
    lines = []
    for name, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(map(json.dumps, value))
            text = f"[\n  {rows}\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    write_atomically(file, "{\n" + ",\n".join(lines) + "\n}\n")


SIZES = {224: 20, 336: 20, 592: 5}
"""Photographs at each size, in pixels; the first is that of the kernels."""

ROUNDS = 5
"""Turns in which times are taken."""


@torch.inference_mode()
def sizes(study: Study) -> None:
    """Uses kernels of the report at other sizes; class tokens attend as before."""
    trained = study.trained
    if trained.larger is None:
        return
    known = {row["size"] for row in study.rows if row["part"] == "sizes"}
    looking = [tuple(head) for head in by_position(study)]
    sets = {"chosen": study.order[:CHOSEN], "convolutions and neighbours": looking}
    changed = {}
    for name, heads in sets.items():
        for arm in (arms.OWN, arms.half_turn(study.report)):
            changed[name, arm] = altered(
                trained.network, study.report, {}, heads, arm, prefix="attend"
            )
    for size, count in SIZES.items():
        if size in known:
            continue
        images = trained.larger(count, size)
        networks = {("", "before"): trained.network, **changed}
        kept: dict[tuple[str, str], dict[str, list[float]]] = {}
        for key in changed:
            kept[key] = {"feature": [], "tokens": []}
        for batch in images.split(5):
            before = trained.features(trained.network, batch)
            for key, network in changed.items():
                after = trained.features(network, batch)
                for name, cosines in kept[key].items():
                    cosines.extend(alike(after[name], before[name]))
        calls = {}
        for key, network in networks.items():
            if key[1] in ("before", arms.OWN):
                calls["/".join(key)] = partial(trained.features, network, images[:1])
        times = ratios(time_rounds(calls, rounds=ROUNDS), "/before")
        for (name, arm), values in kept.items():
            row = {"part": "sizes", "size": size, "pixels": images.shape[-1], "heads": name}
            row |= {"count": len(sets[name]), "arm": arm, **values}
            row["times"] = times.get(f"{name}/{arm}", [])
            study.keep(row)


def by_position(study: Study) -> list[Head]:
    """Lists the heads that are convolutions or neighbours."""
    found = []
    for layer in study.report.layers:
        for head, verdict in zip(layer.heads, layer.verdicts, strict=True):
            if verdict.word in (CONVOLUTION, NEIGHBOUR):
                found.append((layer.name, head.head))
    return found


def tasks(study: Study) -> None:
    """Measures a task of the network, as it is and in every arm without draws."""
    task = study.trained.task
    if task is None:
        return
    done = {row["arm"] for row in study.rows if row["part"] == "tasks"}
    plain = (arms.OWN, arms.half_turn(study.report), arms.MEAN, arms.ZERO, arms.UNIFORM, arms.TAP)
    for arm in (BEFORE, *plain):
        if arm not in done:
            network = study.trained.network
            if arm != BEFORE:
                heads = study.order[:CHOSEN]
                network = altered(network, study.report, study.maps, heads, arm)
            study.keep({"part": "tasks", "arm": arm, "right": task(network)})


RUNS = {
    "words": words,
    "cause": cause,
    "alone": alone,
    "curve": curve,
    "sizes": sizes,
    "tasks": tasks,
}


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__, "--work")
    parser.add_argument("networks", nargs="+", choices=LOADERS)
    parser.add_argument("--photographs", type=Path, help="folder of photographs.parquet")
    parser.add_argument("--digits", type=Path, help="folder of spoken-digits.parquet")
    parser.add_argument("--parts", nargs="+", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    folders = {"photographs": options.photographs, "digits": options.digits}
    for name in options.networks:
        study = Study(name, load(name, folders, options.work), options.work)
        for part in options.parts:
            RUNS[part](study)
        write(Path(__file__).parent / f"{name}.json", record(study))


if __name__ == "__main__":
    main()
