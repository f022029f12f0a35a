"""The model card of a run: Markdown with the front matter of the Hub."""

from convattn.errors import optional_module
from convattn.lab.page_templates import fill_template
from convattn.lab.recipe import flatten
from convattn.provenance import RunRecord


def model_card(record: RunRecord, *, license_id: str | None = None) -> str:
    """Writes the model card of a run: Markdown with the front matter of the Hub.

    The items are those of the reproducibility checklist of J. Pineau et al., "Improving reproducibility in machine
    learning research", JMLR 22 (2021), without those on theorems, on new data, on energy, and on the spread over runs,
    which is on the page of a study. `license_id` is the Hub's name of the weights' licence; only their owner knows it.
    """
    # images given in Python are not those that the recipe names
    dataset = record.data.name.rpartition(" (")[0] or record.data.name
    hub = optional_module("huggingface_hub", "train")
    front = hub.ModelCardData(
        library_name="convattn",
        license=license_id,
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
                dataset_split=record.measured,
                metric_type="accuracy",
                metric_value=record.accuracy,
            )
        ],
    )
    setup = flatten(record.recipe)
    del setup["name"], setup["claim"]
    return fill_template("model_card.txt", record=record, front=front.to_yaml(), setup=setup)
