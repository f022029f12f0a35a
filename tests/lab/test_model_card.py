import re

import pytest
from tests.lab.tiny import tiny_data, tiny_recipe

from convattn.lab import train
from convattn.lab.model_card import model_card
from convattn.networks.images import own_images, trained_on
from convattn.networks.loading import load_with_source
from convattn.provenance import RunRecord


@pytest.fixture(scope="module")
def record():
    return train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)


CHECKLIST = {
    "algorithm": "pseudocode",
    "assumptions": "assumptions",
    "complexity": "complexity",
    "statistics and splits of the data": "split",
    "data left out": "left out",
    "pre-processing": "scaled",
    "where the data are": "source",
    "dependencies": "version of torch",
    "training code and command": "command",
    "evaluation code": "evaluation",
    "trained model": "weights",
    "all hyper-parameters": "optim.learning_rate",
    "range of hyper-parameters and how they were chosen": "settings tried",
    "number of runs": "runs",
    "definition of the measure": "measure of accuracy",
    "run time": "time",
    "infrastructure": "processor",
}


@pytest.mark.parametrize("item", CHECKLIST)
def test_card_answers_every_item_of_the_checklist(record, item):
    assert re.search(
        rf"^\| {re.escape(CHECKLIST[item])} \| [^|\n]+ \|$", model_card(record), re.MULTILINE
    )


def test_the_claim_is_said_to_be_the_recipes(record):
    """The run may have had other settings."""
    assert f"\n\nWhat the recipe claims, for its own settings: {record.claim}\n\n" in model_card(
        record
    )


def test_images_given_in_python_are_not_said_to_be_those_of_the_recipe(tmp_path):
    record = train(tiny_recipe(epochs=1), data=tiny_data(), output=tmp_path / "run", progress=False)
    assert record.recipe["data"]["name"] == "digits"
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8").partition("\n---\n")[0]
    assert "type: halves" in card
    assert "digits" not in card
    assert trained_on(tmp_path / "run") == "halves"
    assert own_images(load_with_source(tmp_path / "run"), 3) is None


def test_each_table_of_the_card_has_two_columns_whatever_its_cells_hold(record):
    given = {**record.__dict__, "command": "convattn train --set name='a|b\nc'"}
    card = model_card(RunRecord(**given))
    assert "a\\|b c" in card
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert all(
        line.startswith("|")
        for line in re.findall(r"## Model\n\n(.*?)\n\n", card, re.DOTALL)[0].splitlines()
    )
