"""The folder of a run: every file is whole or not there, and the record is written last."""

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from torch import nn

from convattn.encodings import GeneralizedQuadratic, Quadratic
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointWarning,
    RecipeError,
    optional_module,
)
from convattn.files import (
    as_path,
    clear_leftovers,
    file_sha256,
    hidden_folder,
    new_folder,
    require_new_folder,
    sole_use,
    write_atomically,
)
from convattn.heads.head_snapshots import HEAD_COLUMNS
from convattn.lab.recipe import Recipe, differing_keys, flatten, load_recipe, recipe_to_toml
from convattn.lab.run_setup import Network, quadratic_encodings
from convattn.lab.tables import markdown_table, write_parquet
from convattn.lab.trainer import EpochResult
from convattn.networks import save_network
from convattn.provenance import RunRecord

_PSEUDOCODE = {
    "attention_net": "docs/explanation/theory.md §1 to §6 (the operator and its paths); class AttentionNet",
    "conv_net": "class ConvNet: the same blocks with convolutions",
    "resnet": "He, Zhang, Ren, Sun, CVPR 2016; class ResNet",
    "speed_net": "docs/explanation/theory.md §1 to §4; class SpeedNet, with the sizes of Jordan, arXiv 2404.00498",
}

_USE = {
    "test": "no validation split; the record of a run does not say on which images its settings were chosen",
    "validation": "the test split was not used",
}
"""What each kind of measured images means for the others."""


def model_card(record: RunRecord) -> str:
    """Writes the model card of a run: Markdown with the front matter of the Hub.

    The items are those of the reproducibility checklist of J. Pineau et al., "Improving reproducibility in machine
    learning research", JMLR 22 (2021), without those on theorems, on new data, on energy, and on the spread over runs,
    which is on the page of a study.
    """
    measured, accuracy = record.measured, record.accuracy
    images = record.data.counts[measured]
    right = f"{round(accuracy * images)} of {images} images"
    scale = "" if record.recipe["scale"] == "paper" else f" at scale {record.recipe['scale']}"
    dataset = record.data.name.partition(" (")[
        0
    ]  # images given in Python are not those that the recipe names
    hub = optional_module("huggingface_hub", "huggingface-hub", "train")
    data = hub.ModelCardData(
        library_name="convattn",
        license="apache-2.0",
        pipeline_tag="image-classification",
        datasets=[dataset] if dataset == record.recipe["data"]["name"] else None,
        metrics=["accuracy"],
        tags=["attention", "convolution", "relative-position"],
        model_name=record.name,
        eval_results=[
            hub.EvalResult(
                task_type="image-classification",
                dataset_type=dataset,
                dataset_name=record.data.name,
                dataset_split=measured,
                metric_type="accuracy",
                metric_value=accuracy,
            )
        ],
    )
    setup = flatten(record.recipe)
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {record.name}{scale}, seed {record.seed}",
        f"What the recipe claims, for its own settings: {record.claim.strip()}",
        f"{measured.capitalize()} accuracy **{accuracy:.2%}** ({right}), n = 1 seed.",
        _table("Model", _model(record)),
        _table("Data", _data(record)),
        _table(
            "Setup",
            {key: str(value) for key, value in setup.items() if key not in ("name", "claim")},
        ),
        _table("Computation", _computation(record)),
        _table("Results of the last epoch", _results(record)),
        "## What the run says nothing about\n\n"
        + "\n".join(f"- {item}" for item in record.not_covered),
    ]
    return "\n\n".join(sections) + "\n"


def _model(record: RunRecord) -> dict[str, str]:
    return {
        "pseudocode": _PSEUDOCODE[record.recipe["model"]["kind"]],
        "assumptions": "images of the size trained on, scaled as under data; classes as balanced as they are there",
        "complexity": f"{record.parameters:,} trainable parameters; time and memory as measured under computation",
        "code": f"convattn {record.versions['convattn']}, revision {record.revision or 'unknown'}",
        "command": f"`{record.command}`",
        "evaluation": "`convattn.lab.trainer.Trainer.evaluate`, in the same command",
        "weights": "`model.safetensors`, loaded by `convattn.load_network`",
    }


def _data(record: RunRecord) -> dict[str, str]:
    counts = ", ".join(f"{number:,} {split}" for split, number in record.data.counts.items())
    return {
        "copy": record.data.name,
        "source": record.data.source,
        "split": f"{record.data.split}; {counts}; {_USE[record.measured]}",
        "left out": "no image; in each epoch, those that do not fill a batch",
        "scaled": "(bytes / 255 − mean) / std by channel, both as in `convattn.data.ImageDataset`",
        **{f"SHA-256 of {name}": value for name, value in record.data.hashes.items()},
    }


def _results(record: RunRecord) -> dict[str, str]:
    of_views = {
        "measure of views": "the same of the mean scores of several views of each image, see setup"
    }
    images = f"{record.measured} images"
    return {
        **{name: f"{value:.6g}" for name, value in record.results.items()},
        "measure of accuracy": f"share of the {images} whose own class has the highest score, each image once",
        "measure of loss": "mean cross-entropy in nats",
        **(of_views if "views_accuracy" in record.results else {}),
        "runs": "one of training, measured after every epoch; these are the numbers of the last, not of the best",
        "settings tried": "this run tried those under setup; the record does not say what earlier runs tried",
    }


def _computation(record: RunRecord) -> dict[str, str]:
    return {
        "started": record.started,
        "time": f"{record.seconds:.1f} s, evaluation included; resumed {record.resumed} times from a checkpoint",
        "peak memory": f"{record.peak_memory / 2**20:,.0f} MiB",
        **record.hardware,
        **{f"version of {name}": value for name, value in record.versions.items()},
    }


def _table(title: str, rows: Mapping[str, str]) -> str:
    return f"## {title}\n\n{markdown_table(['', ''], list(rows.items()))}"


class HeadTrace:
    """Centres and sharpness: a row for each head, two-dimensional quadratic layer and recorded moment.

    Example:
        >>> from convattn.models import AttentionNet
        >>> trace = HeadTrace(AttentionNet(width=8, depth=2, heads=3, ffn=8))
        >>> trace.record(step=0, epoch=0)
        >>> len(trace.rows)
        6
    """

    def __init__(self, network: nn.Module) -> None:
        self._encodings = [
            encoding for encoding in quadratic_encodings(network) if encoding.dims == 2
        ]
        self.rows: list[dict[str, float]] = []

    def record(self, *, step: int, epoch: int) -> None:
        """Adds the present centres and sharpness of every head."""
        for layer, encoding in enumerate(self._encodings):
            centres = encoding.centres.detach().double().cpu().tolist()
            for head, (centre, precision) in enumerate(
                zip(centres, _precisions(encoding), strict=True)
            ):
                position = {"step": step, "epoch": epoch, "layer": layer, "head": head}
                self.rows.append(
                    {**position, "centre_row": centre[0], "centre_col": centre[1], **precision}
                )

    def complete(self, steps: Iterable[int]) -> bool:
        """Returns whether there is a row of finite numbers for every head after each of these steps, once."""
        heads = [
            (layer, n)
            for layer, encoding in enumerate(self._encodings)
            for n in range(encoding.num_heads)
        ]
        expected = [(step, *head) for step in steps for head in heads]
        finite = all(
            value is not None and math.isfinite(value)
            for row in self.rows
            for value in row.values()
        )
        return (
            finite and [(row["step"], row["layer"], row["head"]) for row in self.rows] == expected
        )

    def save(self, path: Path) -> None:
        """Writes the rows as a parquet file with `HEAD_COLUMNS`."""
        write_parquet(path, self.rows, HEAD_COLUMNS)


def _precisions(encoding: Quadratic | GeneralizedQuadratic) -> Iterator[dict[str, float]]:
    """Yields Σ⁻¹ and the sharpness of each head; for −α‖δ − Δ‖², Σ⁻¹ is 2α times the identity."""
    if isinstance(encoding, GeneralizedQuadratic):
        matrices = encoding.precision
    else:
        matrices = (
            2 * encoding.sharpness[:, None, None] * torch.eye(2, device=encoding.centres.device)
        )
    for matrix in matrices.detach().double().cpu():
        (row_row, row_col), (_, col_col) = matrix.tolist()
        yield {
            "sharpness": (row_row + col_col) / 4,
            "precision_row_row": row_row,
            "precision_row_col": row_col,
            "precision_col_col": col_col,
        }


_MANIFEST = "checkpoint.json"
_NEWEST = 2


@final
class Checkpoints:
    """The checkpoints of one run, ``step-00000123`` and so on in a folder; the newest two are kept.

    A checkpoint is written under a temporary name, with the SHA-256 of each of its files, and then renamed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @contextmanager
    def new(self, step: int, processes: int) -> Iterator[Path]:
        """Yields a hidden folder for the checkpoint of a step, and moves it to its place when the block ends.

        All others but the newest two before it are dropped. Those of later steps must be damaged, or the run would have
        resumed there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(self.folder)
        place = self.folder / f"step-{step:08d}"
        with (
            hidden_folder(self.folder, place.name) as written,
            hidden_folder(self.folder, "old") as old,
        ):
            yield written
            files = sorted(path for path in written.rglob("*") if path.is_file())
            for path in files:
                path.chmod(
                    written.stat().st_mode & 0o666
                )  # safetensors keeps its files to their owner
            hashes = {str(path.relative_to(written)): file_sha256(path) for path in files}
            manifest = {"step": step, "processes": processes, "files": hashes}
            write_atomically(written / _MANIFEST, json.dumps(manifest, indent=2) + "\n")
            before = [other for other in self._newest_first() if other.name < place.name][
                : _NEWEST - 1
            ]
            for other in self._newest_first():
                if other not in before:
                    os.replace(other, old / other.name)  # so that no process finds half of it
            os.replace(written, place)

    def load_newest(self, load: Callable[[Path, int], None]) -> None:
        """Calls `load` with the folder of the newest undamaged checkpoint and the number of processes that wrote it.

        Newer checkpoints that are damaged give a warning; if none is left, this raises CheckpointError.
        """
        damaged = []
        for place in self._newest_first():
            try:
                processes = _check(place)
            except CheckpointError as error:
                damaged.append(str(error))
                warnings.warn(
                    f"{error}; the one before it is used", CheckpointWarning, stacklevel=2
                )
                continue
            load(place, processes)
            return
        listed = f": {'; '.join(damaged)}" if damaged else ""
        raise CheckpointError(f"{self.folder} has no checkpoint to resume from{listed}")

    def drop_all(self) -> None:
        """Removes all checkpoints, once the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)


def _check(place: Path) -> int:
    """Checks the files of a checkpoint and returns its number of processes; a damaged one raises CheckpointError."""
    try:
        content = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        processes, files = int(content["processes"]), dict(content["files"])
        wrong = [name for name, stated in files.items() if file_sha256(place / name) != stated]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"checkpoint {place.name} is damaged ({type(error).__name__}: {error})"
        ) from None
    if wrong:
        raise CheckpointError(
            f"checkpoint {place.name} is damaged (changed since it was written: {', '.join(wrong)})"
        )
    return processes


class RunFolder:
    """Writes the files of a run, and reads those of an unfinished run.

    ``recipe.toml`` (resolved) and the first of the ``checkpoints`` come with the folder itself; ``metrics.jsonl`` and
    ``heads.parquet`` are replaced after every epoch and before every checkpoint; ``model.safetensors``, ``config.json``
    and ``README.md`` (the card) come at the end, and ``record.json`` last of all: a folder without it is a run that did
    not finish. Each file is written under a temporary name and then renamed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path, "output")
        self._held = ExitStack()
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._metrics: list[str] = []

    def require_new(self) -> None:
        """Raises ArgumentError unless the folder is new or empty; the message says how to continue a run in it."""
        if (self.path / "recipe.toml").is_file():
            raise ArgumentError(
                f"output must be new or empty, but {str(self.path)!r} holds a run: continue it with resume=True"
                " (command: --resume), or choose another folder"
            )
        require_new_folder(self.path, "output")

    def find_finished(self, recipe: Recipe) -> RunRecord | None:
        """Returns the record of the finished run in the folder, or None if the run can be resumed.

        If the folder holds no run, one of another recipe, or files that cannot be read, this raises CheckpointError.
        """
        file = self.path / "recipe.toml"
        if not file.is_file():
            raise CheckpointError(f"{self.path} holds no run to resume: it has no recipe.toml")
        try:
            there = load_recipe(file)
        except RecipeError as error:
            raise CheckpointError(f"{self.path} holds no run to resume: {error}") from None
        differing = differing_keys(there.to_dict(), recipe.to_dict())
        if differing:
            raise CheckpointError(
                f"{self.path} holds a run of another recipe: {'; '.join(differing)}"
            )
        record = self.path / "record.json"
        return RunRecord.load(record) if record.is_file() else None

    @contextmanager
    def new(self, recipe: Recipe) -> Iterator[Path]:
        """Makes the folder with the recipe and what the block writes; until the block ends, its name is temporary."""
        with new_folder(self.path, "output") as folder:
            write_atomically(folder / "recipe.toml", recipe_to_toml(recipe))
            yield folder

    def hold(self) -> None:
        """Locks the folder for this process until `release`, and removes leftovers of killed processes."""
        self._held.enter_context(sole_use(self.path))
        clear_leftovers(self.path)

    def release(self) -> None:
        """Unlocks the folder."""
        self._held.close()

    def rewind(
        self, steps: Sequence[int], epoch: int, measured: str, heads: HeadTrace
    ) -> list[EpochResult]:
        """Drops what was written after a checkpoint: returns the epochs before it, and fills the trace of the heads.

        `steps` are those after which heads were recorded, up to the checkpoint's. A missing or damaged file raises
        CheckpointError.
        """
        pa = optional_module("pyarrow.parquet", "pyarrow", "train")
        file, step = self.path / "metrics.jsonl", max(steps)
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            kept = [metrics for metrics in map(json.loads, lines) if metrics["step"] <= step]
            results = [EpochResult.from_metrics(metrics, measured) for metrics in kept]
            if (self.path / "heads.parquet").is_file():
                table = pa.parquet.read_table(
                    self.path / "heads.parquet", page_checksum_verification=True
                )
                rows = table.select([*HEAD_COLUMNS]).cast(pa.schema(HEAD_COLUMNS)).to_pylist()
                heads.rows = [row for row in rows if row["step"] <= step]
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
            pa.ArrowException,
        ) as error:
            raise CheckpointError(
                f"cannot resume {self.path}: {type(error).__name__}: {error}"
            ) from None
        if [result.epoch for result in results] != list(range(1, epoch + 1)):
            raise CheckpointError(
                f"cannot resume {self.path}: {file.name} must hold {epoch} epochs, each once"
            )
        if (step > 0 or heads.rows) and not heads.complete(steps):
            raise CheckpointError(
                f"cannot resume {self.path}: heads.parquet must hold every head after {len(steps)} steps, each once, in"
                " finite numbers"
            )
        self._metrics = [json.dumps(metrics) + "\n" for metrics in kept]
        return results

    def add_epoch(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of one more epoch."""
        self._metrics.append(json.dumps(metrics) + "\n")
        write_atomically(self.path / "metrics.jsonl", "".join(self._metrics))

    def write_heads(self, heads: HeadTrace) -> None:
        """Writes the trace of the heads, if any have centres."""
        if heads.rows:
            heads.save(self.path / "heads.parquet")

    def finish(self, network: Network, record: RunRecord) -> None:
        """Writes the network and its card, then the record, and drops the checkpoints.

        If a file cannot be written, this raises CheckpointError.
        """
        try:
            with hidden_folder(self.path, "model") as hidden:
                folder = hidden / "network"
                vars(network).pop("forward", None)  # accelerate's own, of mixed precision
                save_network(network, folder)
                for name in ("model.safetensors", "config.json"):
                    os.replace(folder / name, self.path / name)
            write_atomically(self.path / "README.md", model_card(record))
            record.save(self.path / "record.json")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot write the network and the record to {self.path} ({error}); resume the run to write them again"
            ) from None
        self.checkpoints.drop_all()
