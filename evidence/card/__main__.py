"""What does it compute, cost and learn on a GPU? Four stages, each with a limit in seconds.

    python -m evidence.card --device cuda          # all stages, each in a process of its own: 12 minutes
    python -m evidence.card timing --seconds 60    # one stage
    python -m evidence.card --device cpu --tiny    # all stages at tiny sizes, whose numbers say nothing

smoke     every kind of module on the device beside the CPU; which of torch's kernels takes content
exact     paths, encodings and precisions beside the definition in float64 on the CPU; certificates
timing    layers beside a convolution, content beside torch's attention: times, kernels, memory
training  the plan of `evidence.card.training`, on CIFAR-10 from CONVATTN_CIFAR10 or packed folders

Results are files of this folder, or of --output. A file is replaced whole after each row, and an error is a row.
"""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import gettempdir

import torch

from convattn.data import load_digits
from evidence.card import exact, smoke, timing, training
from evidence.card.packed import unpacked
from evidence.card.rows import Stage
from evidence.results import cifar10, new_parser

SECONDS = {"smoke": 60, "exact": 75, "timing": 120, "training": 420}
"""Stages and their limits."""

_GRACE = 60
"""Seconds that a process may take longer, for its start and its last case."""


def options() -> Namespace:
    """Reads the command line."""
    names = [part.name for part in training.PARTS]
    parser = new_parser(__doc__)
    parser.add_argument("stage", nargs="?", choices=SECONDS, help="default: all")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--tiny", action="store_true", help="take tiny sizes, and few cases")
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--seconds", type=float, help="limit of a stage")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, help="parts to train")
    parser.add_argument("--images", type=Path, nargs="+", help="folders of packed images")
    parser.add_argument("--process", type=int, default=0, help="number of this one, from 0")
    parser.add_argument("--processes", type=int, default=1, help="processes that share rounds")
    read = parser.parse_args()
    if read.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"device {read.device} is not there; --device cpu --tiny tries the stages out")
    if read.output is None:
        read.output = Path(gettempdir(), "card") if read.tiny else Path(__file__).parent
    return read


def run(read: Namespace) -> None:
    """Runs one stage."""
    seconds = read.seconds or SECONDS[read.stage]
    stage = Stage(read.stage, torch.device(read.device), read.output, seconds, read.tiny)
    if read.stage != "training":
        {"smoke": smoke, "exact": exact, "timing": timing}[read.stage].run(stage)
        return
    if read.tiny:
        data = load_digits()
    else:
        data = unpacked(read.images) if read.images else cifar10()
    parts = [part for part in training.PARTS if part.name in read.parts]
    training.run(stage, data, parts, read.process, read.processes)


def main() -> None:
    """Runs one stage, or each in a process of its own, so that none spoils the device for the next."""
    read = options()
    if read.stage:
        run(read)
        return
    for name, seconds in SECONDS.items():
        command = [sys.executable, "-m", "evidence.card", name, *sys.argv[1:]]
        try:
            subprocess.run(command, check=False, timeout=(read.seconds or seconds) + _GRACE)
        except subprocess.TimeoutExpired:
            print(f"{name} was stopped")
    print(f"results: {read.output}")


if __name__ == "__main__":
    main()
