import dataclasses
import re

import pytest

from convattn.errors import ArgumentError, RecipeError, UnknownNameError
from convattn.lab import load_recipe, recipe_names, recipe_to_toml
from convattn.lab.recipe import command_for

REFUSED = {
    "unknown key": (
        "optim.learning_rat",
        "1",
        r"unknown key 'optim.learning_rat': did you mean 'learning_rate'\?",
    ),
    "unknown section": ("optimm.momentum", "1", r"unknown key 'optimm': did you mean 'optim'\?"),
    "out of range": (
        "optim.momentum",
        "1",
        r"optim.momentum must be a number in \[0, 1\), but is '1'",
    ),
    "too few": ("training.epochs", "0", "training.epochs must be an integer of at least 1, but is"),
    "not a choice": (
        "data.name",
        "mnist",
        "data.name must be 'digits' or 'cifar10' or 'folder', but is 'mnist'",
    ),
    "not a kind": (
        "model.kind",
        "vit",
        "model.kind must be 'attention_net' or 'conv_net' or 'resnet' or 'speed_net', but is 'vit'",
    ),
    "value as a section": (
        "name.first",
        "x",
        "cannot set name.first, because name is a single value",
    ),
    "flips without flip": (
        "data.alternate_flip",
        "true",
        "alternate_flip must be false without flip, but is True",
    ),
    "no rate": ("optim.centre_rate", "0", "optim.centre_rate must be a number above 0, but is '0'"),
    "pruned from nothing": (
        "start.prune",
        "true",
        "recipe must be the name of a recipe, because folder or prune is set, but is None",
    ),
    "folder of nothing": (
        "start.folder",
        "runs",
        "recipe must be the name of a recipe, because folder or prune is set",
    ),
    "scale": (
        "scale",
        "tiny",
        r"scale cannot be set by an override: use scale=NAME \(command: --scale NAME\)$",
    ),
    "combination": (
        "optim.nesterov",
        "true",
        "nesterov must be false without sgd and a momentum, but is True",
    ),
}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_survives_being_written(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    (tmp_path / "again.toml").write_text(recipe_to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_override_is_named(case):
    key, value, message = REFUSED[case]
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe("digits-quadratic", overrides={key: value})
    assert str(caught.value).startswith("digits-quadratic.toml: ")


def test_unknown_recipe_has_its_nearest_named():
    with pytest.raises(UnknownNameError, match=re.escape("did you mean 'sa-quadratic'?")):
        load_recipe("sa-quadratik")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.toml")
    for bad in ("name = ", "name = " + 100_000 * "[", "seed = 1" + 5_000 * "0"):
        (tmp_path / "bad.toml").write_text(bad)
        with pytest.raises(RecipeError, match="not TOML"):
            load_recipe(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text(f"name = 'a'\nclaim = 'b'\nseed = 0x{5_000 * 'f'}")
    with pytest.raises(
        RecipeError,
        match=r"seed must be an integer .* but is a number of type int that is too long",
    ):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "short.toml").write_text('name = "x"')
    with pytest.raises(RecipeError, match="claim is missing; it must be text"):
        load_recipe(tmp_path / "short.toml")


def test_override_lists_stand_between_commas():
    recipe = load_recipe(
        "resnet18", overrides={"schedule.milestones": "2, 5", "training.epochs": "7"}
    )
    assert recipe.schedule.milestones == (2, 5)
    assert (
        command_for(recipe)
        == "convattn train resnet18 --set schedule.milestones=2,5 --set training.epochs=7"
    )


def test_overrides_that_are_no_dict_are_refused(without_type_checks):
    with pytest.raises(
        ArgumentError,
        match=r"^overrides must be new values by key, as a dict, but is \['seed=3'\]$",
    ):
        load_recipe("digits-quadratic", overrides=["seed=3"])
    with pytest.raises(
        ArgumentError, match=r"^overrides must be new values by key, as a dict, but is \{3: 'a'\}$"
    ):
        load_recipe("digits-quadratic", overrides={3: "a"})


def test_recipe_of_the_default_network_has_every_scale(tmp_path):
    (tmp_path / "short.toml").write_text('name = "short"\nclaim = "none"\n')
    for scale, width in (("paper", 400), ("small", 64)):
        model = load_recipe(tmp_path / "short.toml", scale=scale).model
        assert (model.kind, model.width) == ("attention_net", width)


def test_recipe_at_a_scale_that_its_name_does_not_have_is_run_from_its_file():
    recipe = load_recipe("digits-quadratic")
    assert command_for(recipe) == "convattn train digits-quadratic"
    assert command_for(dataclasses.replace(recipe, scale="tiny")) == "convattn train recipe.toml"
    assert command_for(dataclasses.replace(recipe, name="mine")) == "convattn train recipe.toml"
