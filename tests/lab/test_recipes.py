"""Every recipe of the package, at every scale that it has."""

import dataclasses

import pytest
from tests.lab.tiny import tiny_data

from convattn.errors import RecipeError, UnknownNameError
from convattn.lab import load_recipe, recipe_names, train
from convattn.lab.recipe import SCALES, command_for
from convattn.lab.run_setup import build_network
from convattn.models import AttentionNet

SHORT = {"training.epochs": "1", "training.batch_size": "240"}
NAMES = [name for name in recipe_names() if name != "digits-quadratic"]
DRAWN = [name for name in NAMES if load_recipe(name).start.recipe is None]


@pytest.mark.parametrize("name", NAMES)
def test_scales_change_sizes_and_not_what_the_recipe_is_about(name):
    recipes = [load_recipe(name, scale=scale) for scale in SCALES]
    assert [recipe.scale for recipe in recipes] == list(SCALES)
    assert [recipe.data.name for recipe in recipes] == ["cifar10", "cifar10", "cifar10", "digits"]
    assert {recipe.optim.algorithm for recipe in recipes[1:]} == {"adamw"}
    for key in (
        "kind",
        "encoding",
        "content",
        "gated",
        "centres",
        "position_start",
        "heads",
        "mixing",
    ):
        assert len({getattr(recipe.model, key, None) for recipe in recipes}) == 1
    assert all(recipe.start == recipes[0].start for recipe in recipes)
    for recipe in recipes[1:]:
        assert command_for(recipe) == f"convattn train {name} --scale {recipe.scale}"


@pytest.mark.parametrize("scale", ["medium", "small"])
def test_runs_of_a_scale_have_the_same_budget(scale):
    recipes = [load_recipe(name, scale=scale) for name in DRAWN]
    budgets = {(recipe.optim, recipe.schedule, recipe.training) for recipe in recipes}
    assert len(budgets) == 2  # that of speedrun, whose labels are smoothed, is the other
    assert len({(recipe.optim, recipe.schedule, recipe.training.epochs) for recipe in recipes}) == 1


def test_medium_networks_are_small_ones_but_wider_and_trained_longer():
    small, medium = (load_recipe("sa-learned", scale=scale) for scale in ("small", "medium"))
    assert dataclasses.replace(medium.model, width=64, ffn=128) == small.model
    assert medium.training.epochs >= 20 > small.training.epochs


@pytest.mark.parametrize(
    "name", [*DRAWN[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in DRAWN[3:])]
)
def test_tiny_run_ends(name, tmp_path):
    recipe = load_recipe(name, scale="tiny", overrides=SHORT)
    record = train(recipe, output=tmp_path / "run", progress=False)
    assert record.results["test_loss"] > 0
    assert (tmp_path / "run" / "README.md").read_text().count(
        f"# {name} at scale tiny, seed 0\n"
    ) == 1


def test_pruned_recipe_trains_on_the_run_that_it_is_given(tmp_path):
    train(
        load_recipe("sa-quadratic-generalized", scale="tiny", overrides=SHORT),
        output=tmp_path / "whole",
    )
    start = {"start.folder": str(tmp_path / "whole")}
    pruned = load_recipe(
        "sa-quadratic-generalized-pruned", scale="tiny", overrides={**SHORT, **start}
    )
    record = train(pruned, output=tmp_path / "pruned", progress=False)
    assert record.recipe["start"] == {
        "recipe": "sa-quadratic-generalized",
        "folder": str(tmp_path / "whole"),
        "prune": True,
    }


def test_pruned_recipe_without_a_run_to_start_from_is_refused():
    with pytest.raises(
        RecipeError,
        match=r"start\.folder must name the folder of a run of sa-quadratic-generalized",
    ):
        train(load_recipe("sa-quadratic-generalized-pruned", scale="tiny"), progress=False)


def test_recipes_that_are_about_a_part_of_the_network_have_it():
    gated = build_network(load_recipe("sa-distance-content-gated", scale="tiny"), tiny_data())
    assert isinstance(gated, AttentionNet)
    assert hasattr(gated.blocks[0].mixer, "gate")
    grid = build_network(load_recipe("sa-quadratic-grid-init", scale="tiny"), tiny_data())
    centres = grid.blocks[0].mixer.encoding.centres.tolist()
    assert sorted(centres) == [[row, col] for row in (-1.0, 0.0, 1.0) for col in (-1.0, 0.0, 1.0)]


def test_unknown_scale_is_named():
    with pytest.raises(UnknownNameError, match="unknown scale 'smal': did you mean 'small'"):
        load_recipe("sa-quadratic", scale="smal")


def test_recipe_at_a_scale_is_not_scaled_again(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nclaim = "none"\nscale = "tiny"\n')
    assert load_recipe(tmp_path / "mine.toml").scale == "tiny"
    with pytest.raises(RecipeError, match="scale must be 'tiny', as the file says, but is 'small'"):
        load_recipe(tmp_path / "mine.toml", scale="small")


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ("scales = 3", "scales must be a table, but is 3"),
        ("training = 3", "training must be a table, but is 3"),
        (
            "[scales.tny.data]\nflip = true",
            "unknown scale 'tny': did you mean 'tiny'",
        ),
        ("[scales]\ntiny = 3", r"scales\.tiny must be a table, but is 3"),
        (
            "[scales.tiny]\nseed = 3",
            r"scales\.tiny\.seed must be a table, but is 3",
        ),
    ],
)
@pytest.mark.parametrize("scale", [None, "tiny"])
def test_changes_by_scale_of_a_recipe_have_their_form(tmp_path, scales, message, scale):
    (tmp_path / "mine.toml").write_text(f'name = "mine"\nclaim = "none"\n{scales}\n')
    with pytest.raises(RecipeError, match=rf"mine\.toml: {message}"):
        load_recipe(tmp_path / "mine.toml", scale=scale)
