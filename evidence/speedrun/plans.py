"""What the rules of the speed run's plans say of their runs; each was written before the first of them.

Sources: the plans in `evidence/speedrun`, in the folders `pairs`, `eighteen`, `occupied` and `converted`.
"""

from collections.abc import Iterable

from convattn.lab.study_record import t_interval
from evidence.studies import Study, study, unfinished
from evidence.values import COMPARED, compared, family, interval, percent, published

SEEDS = 10
"""Seeds, all networks of each, that a rule is for, but for that of eighteen epochs."""

NEW_SEEDS = 5
"""Seeds that the rule of eighteen epochs is for."""

MIXINGS = {"attention": "soft heads", "conv": "convolutions", "hard": "hard heads"}
"""Networks of whole pairs at a quarter of the width, in words."""

TAPS = {"3": "3 taps", "6": "6 taps", "9": "9 taps"}
"""Networks whose heads stay on so many taps of a 3 × 3 kernel."""

CONVERTED = {"conv": "convolutions", "soft": "soft heads", "gated": "heads with content"}
"""What a trained network of convolutions becomes before it learns on."""

_NOTHING = 0.5
"""Points within which the rule of converted networks calls a difference none."""


def of_networks(runs: Study, networks: Iterable[str]) -> Study:
    """Returns the runs of these networks alone; some may have none."""
    return Study({label: runs.runs.get(label, {}) for label in networks})


def whole_pairs() -> Study:
    """Reads the runs of pairs at a quarter of the width: three seeds, and those of the plan that have finished."""
    before = study("speedrun/quarter/table")
    planned = of_networks(study("speedrun/pairs"), MIXINGS)
    return Study({label: before.runs[label] | planned.runs[label] for label in MIXINGS})


def every_seed(runs: Study) -> list[int]:
    """Lists the seeds of which a run has finished."""
    return sorted(set().union(*runs.runs.values()))


def accuracies_of(runs: Study, seed: int) -> list[str]:
    """Words the accuracy of each network of a seed, or that its run has not finished."""
    words = []
    for of_label in runs.runs.values():
        run = of_label.get(seed)
        words.append("not run" if run is None else percent(run.results["test_accuracy"]))
    return words


def pairs_in_words(runs: Study) -> str:
    """Says which of soft heads, hard heads and convolutions is ahead."""
    if (words := unfinished(len(runs.seeds), SEEDS)) is not None:
        return words
    gap = compared(runs, "pairs")
    found = []
    for one, other in COMPARED["pairs"]:
        found.append(f"{MIXINGS[one]} less {MIXINGS[other]} {gap(one, other)}")
    return "; ".join(found)


def eighteen_in_words(runs: Study) -> str:
    """Says whether a network without any convolution reaches the paper's accuracy in eighteen epochs."""
    if (words := unfinished(len(of_networks(runs, ["speedrun"]).seeds), NEW_SEEDS)) is not None:
        return words
    wanted = published("sa-quadratic")["paper"]
    accuracies = [100 * one for one in runs.accuracy("speedrun")]
    reached = (
        "is reached" if t_interval(accuracies)[0] >= float(wanted) else "is not shown to be reached"
    )
    return f"{interval(accuracies, ' %', '')}: {wanted} % {reached}"


def occupied_in_words(runs: Study) -> str:
    """Says whether covering the taps of a 3 × 3 kernel causes accuracy."""
    if (words := unfinished(len(of_networks(runs, TAPS).seeds), SEEDS)) is not None:
        return words
    outer = runs.less("9", "3")
    slopes = [points / 6 for points in outer]
    causes = "causes accuracy" if t_interval(slopes)[0] > 0 else "is not shown to cause accuracy"
    return f"{interval(slopes, ' points a tap')}: covering them {causes}"


def converted_in_words(runs: Study) -> str:
    """Says whether a converted network is worth learning on."""
    if (words := unfinished(len(of_networks(runs, CONVERTED).seeds), SEEDS)) is not None:
        return words
    gap = family({(label, "conv"): runs.less(label, "conv") for label in ("gated", "soft")})
    low, high = t_interval(gap("gated", "conv").values)
    verdict = "nothing is shown"
    if low > 0:
        verdict = "learning on is worth it"
    elif max(-low, high) <= _NOTHING:
        verdict = "learning on is not worth it"
    found = [
        f"{CONVERTED[one]} less {CONVERTED['conv']} {gap(one, 'conv')}" for one in ("gated", "soft")
    ]
    return f"{'; '.join(found)}: {verdict}"
