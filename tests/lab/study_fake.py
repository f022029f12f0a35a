"""A stand-in for `convattn train` that writes the same files, in no time and without torch; run as a program.

Its weights are a chain of hashes, one link an epoch, kept in checkpoints as training keeps its own: a link that is lost
or made twice gives other bytes. The metrics say where an attempt began.
"""

import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path(__file__)


@dataclass(frozen=True)
class FakeTrain:
    """Makes the command, in place of `train_command`."""

    epochs: int = 3
    seconds: float = 0.0
    failing: tuple[str, ...] = ()
    revisions: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    def __call__(self, run):
        from convattn.lab import recipe_to_toml  # the program itself does without

        task = {
            "folder": str(run.folder),
            "toml": recipe_to_toml(run.recipe),
            "epochs": self.epochs,
            "seconds": self.seconds,
            "fail": run.name in self.failing,
            "record": fake_record(
                run, self.revisions.get(run.name, "abc"), self.hashes.get(run.name, "123")
            ),
        }
        return [
            sys.executable,
            "-P",
            str(FILE),
            json.dumps(task),
            *(["--resume"] if run.begun else []),
        ]


def fake_record(run, revision, digest):
    """Make the record of a run, but for its accuracy, as JSON's own types."""
    from convattn.provenance import DataRecord, RunRecord

    counts = {"train": 5, run.recipe.data.measured: 3}
    data = DataRecord("made up", "the tests", {"images": digest}, counts, "in order")
    known = {
        "name": run.recipe.name,
        "claim": run.recipe.claim,
        "command": "fake",
        "recipe": run.recipe.to_dict(),
        "seed": run.recipe.seed,
        "data": asdict(data),
        "parameters": 7,
        "seconds": 11.0,
        "peak_memory": 13,
        "resumed": 0,
        "hardware": {"processor": "abacus"},
        "versions": {"python": "3"},
        "started": "2020-01-01T00:00:00+00:00",
        "revision": revision,
        "not_covered": (),
    }
    return {"record": "RunRecord", "schema_version": RunRecord.schema_version, **known}


def write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def main(task: dict, resume: bool) -> None:
    folder, record = Path(task["folder"]), task["record"]
    measured = "validation" if "validation" in record["data"]["counts"] else "test"
    checkpoint = folder / "checkpoints" / "last"
    if resume:
        link = checkpoint.read_bytes()
    else:
        link = hashlib.sha256(task["toml"].encode()).digest() + bytes([0])
        hidden = folder.with_name(f".{folder.name}")
        (hidden / "checkpoints").mkdir(parents=True)
        (hidden / "checkpoints" / "last").write_bytes(link)
        (hidden / "recipe.toml").write_text(task["toml"])
        hidden.rename(folder)  # raises where an earlier run is in the way
    first = link[-1]
    for epoch in range(first, task["epochs"]):
        time.sleep(task["seconds"])
        if task["fail"]:
            sys.exit(f"cannot do epoch {epoch}")
        link = hashlib.sha256(link).digest() + bytes([epoch + 1])
        with (folder / "metrics.jsonl").open("a") as file:
            row = {"epoch": epoch + 1, "began": first, f"{measured}_accuracy": link[0] / 256}
            file.write(json.dumps(row) + "\n")
        write(checkpoint, link)
    write(folder / "model.safetensors", link)
    record["results"] = {f"{measured}_accuracy": link[0] / 256}  # sums of which are exact
    record["hardware"]["threads"] = os.environ["OMP_NUM_THREADS"]
    write(folder / "record.json", json.dumps(record).encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), "--resume" in sys.argv)
