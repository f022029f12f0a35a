import dataclasses

import pytest
from tests.lab.tiny import tiny_recipe, tiny_speed_recipe

from convattn.errors import RecipeError
from convattn.lab import load_recipe, recipe_to_toml
from convattn.lab.recipe import (
    AttentionNetRecipe,
    ConvNetRecipe,
    CosineRecipe,
    DataRecipe,
    LookaheadRecipe,
    OptimRecipe,
    ResNetRecipe,
    SpeedNetRecipe,
    StepsRecipe,
    TrainingRecipe,
    TriangleRecipe,
    command_for,
)

PAPER = {
    "sa-quadratic": (
        AttentionNetRecipe("attention_net", "quadratic", content=False),
        CosineRecipe(),
    ),
    "sa-learned": (
        AttentionNetRecipe("attention_net", "learned_axial", content=False),
        CosineRecipe(),
    ),
    "sa-learned-content": (
        AttentionNetRecipe("attention_net", "learned_axial", content=True),
        CosineRecipe(),
    ),
    "convnet": (ConvNetRecipe(kernel_size=3), CosineRecipe()),
    "resnet18": (ResNetRecipe(), StepsRecipe(milestones=(80, 150, 250), factor=0.1)),
}


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_paper_have_its_settings(name):
    recipe, (model, schedule) = load_recipe(name), PAPER[name]
    assert (recipe.model, recipe.schedule) == (model, schedule)
    assert recipe.data == DataRecipe("cifar10", folder=None, crop_padding=4, flip=True)
    assert recipe.optim == OptimRecipe(
        "sgd", learning_rate=0.1, momentum=0.9, nesterov=False, weight_decay=1e-4
    )
    assert recipe.training == TrainingRecipe(epochs=300, batch_size=100, precision="no")


def test_speed_run_has_the_settings_of_the_convolutional_record():
    recipe = load_recipe("speedrun")
    assert recipe.model == SpeedNetRecipe(mixing="attention", widths=(64, 256, 256), sharpness=4.0)
    flips = {"flip": True, "alternate_flip": True}
    assert recipe.data == DataRecipe("cifar10", crop_padding=2, crop_border="reflect", **flips)
    both = 1 + 1 / (1 - recipe.optim.momentum)
    assert recipe.optim.learning_rate == pytest.approx(11.5 / both, rel=1e-12)
    decay = 0.0153 / both / recipe.optim.learning_rate
    assert recipe.optim.weight_decay == pytest.approx(
        decay, rel=5e-3
    )  # the recipe has three digits
    assert (recipe.optim.momentum, recipe.optim.nesterov, recipe.optim.norm_bias_rate) == (
        0.85,
        True,
        64,
    )
    assert recipe.schedule == TriangleRecipe(start=0.2, peak=0.23, end=0.07)
    assert recipe.lookahead == LookaheadRecipe(steps=5, decay=0.95)
    assert (recipe.training.epochs, recipe.training.batch_size, recipe.training.stem_epochs) == (
        12,
        1024,
        3,
    )
    assert recipe.training.label_smoothing == 0.2


def test_speed_run_comes_back_from_its_file(tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(tiny_speed_recipe()))
    assert load_recipe(tmp_path / "recipe.toml") == tiny_speed_recipe()


def test_defaults_are_the_papers_sizes():
    sizes = {
        "width": 400,
        "depth": 6,
        "ffn": 512,
        "patch": 2,
        "dropout": 0.1,
        "initializer_range": 0.02,
    }
    for model in (AttentionNetRecipe(), ConvNetRecipe()):
        assert {key: getattr(model, key) for key in sizes} == sizes
    assert AttentionNetRecipe().heads == 9
    assert CosineRecipe().warmup == 0.05


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.learning_rate", "1", 1.0),
        ("data.flip", "False", False),
    ],
)
def test_override_is_read_as_the_type_of_its_key(key, text, value):
    recipe, (section, field) = (
        load_recipe("digits-quadratic", overrides={key: text}),
        key.split("."),
    )
    found = getattr(getattr(recipe, section), field)
    assert (found, type(found)) == (value, type(value))


WRONG_FILES = {
    "wrong type": ("seed = 'c'", "seed must be an integer in .*, but is 'c'"),
    "truth for a number": ("seed = true", "seed must be an integer in .*, but is True"),
    "kind missing": ("[model]\nwidth = 8", "model.kind must be 'attention_net'.*but is None"),
    "kind is no text": ("[model]\nkind = [1]", r"model.kind must be .*but is \[1\]"),
    "key of another kind": ("[model]\nkind = 'resnet'\nheads = 8", "unknown key 'model.heads'"),
    "milestone is no number": (
        "[schedule]\nkind = 'steps'\nmilestones = ['x']",
        r"schedule.milestones\[0\] must be an integer of at least 1, but is 'x'",
    ),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_file_is_named_with_the_reason(case, tmp_path):
    text, message = WRONG_FILES[case]
    (tmp_path / "mine.toml").write_text(f"name = 'a'\nclaim = 'b'\n{text}")
    with pytest.raises(RecipeError, match=rf"mine\.toml: {message}"):
        load_recipe(tmp_path / "mine.toml")


def test_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"mine\.toml: not TOML"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.usefixtures("without_type_checks")
def test_values_are_checked_in_python_as_well():
    with pytest.raises(RecipeError, match=r"learning_rate must be a number above 0, but is -1\.0"):
        OptimRecipe(learning_rate=-1.0)
    assert StepsRecipe(milestones=[2, 5]).milestones == (2, 5)


@pytest.mark.parametrize(
    "model",
    [
        AttentionNetRecipe(encoding="distance"),
        ConvNetRecipe(kernel_size=5),
        ResNetRecipe(blocks_per_stage=1),
    ],
)
def test_recipe_built_in_python_comes_back_from_its_file(model, tmp_path):
    recipe = dataclasses.replace(
        tiny_recipe(), model=model, schedule=StepsRecipe(milestones=(1, 2))
    )
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe))
    assert load_recipe(tmp_path / "recipe.toml") == recipe


def test_command_quotes_what_a_shell_would_split():
    recipe = load_recipe(
        "resnet18", overrides={"seed": "2", "data.folder": "a b", "data.flip": "false"}
    )
    assert command_for(recipe) == (
        "convattn train resnet18 --set seed=2 --set 'data.folder=a b' --set data.flip=false"
    )


def test_command_of_a_recipe_that_overrides_cannot_make_is_its_own_file():
    assert command_for(tiny_recipe()) == "convattn train recipe.toml"
    recipe = dataclasses.replace(load_recipe("sa-quadratic"), model=ConvNetRecipe())
    assert command_for(recipe) == "convattn train recipe.toml"
