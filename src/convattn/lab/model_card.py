"""The model card of a run: Markdown with the front matter of the Hub."""

from collections.abc import Mapping

from convattn.errors import optional_module
from convattn.lab.recipe import flatten
from convattn.lab.tables import markdown_table
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
    # images given in Python are not those that the recipe names
    dataset = record.data.name.partition(" (")[0]
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
