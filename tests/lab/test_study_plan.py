import re
import sys

import pytest

from convattn.errors import ArgumentError, DataError, UnknownNameError
from convattn.lab import load_recipe, recipe_to_toml, study
from convattn.lab.study_plan import plan_runs, require_own, train_command

RECIPE = "digits-quadratic"


def plan(folder, recipes=(RECIPE,), *, seeds=(0,), scale=None, overrides=None, grid=None):
    return plan_runs(
        recipes, folder, seeds=seeds, scale=scale, overrides=overrides or {}, grid=grid or {}
    )


def test_runs_are_recipes_times_variants_times_seeds(tmp_path):
    grid = {"model.heads": ("4", "9"), "optim.learning_rate": ("0.1", "1e-3")}
    runs = plan(tmp_path, seeds=(3, 5), grid=grid, overrides={"training.epochs": "2"})
    assert len(runs) == len({run.folder for run in runs}) == 8
    last = runs[-1]
    assert last.label == f"{RECIPE}[model.heads=9,optim.learning_rate=1e-3]"
    recipe = last.recipe
    assert (
        recipe.model.heads,
        recipe.optim.learning_rate,
        recipe.seed,
        recipe.training.epochs,
    ) == (9, 1e-3, 5, 2)


def test_folder_names_are_safe_and_distinct(tmp_path):
    values = ("0.5", "0.25", "0.125")
    names = [run.name for run in plan(tmp_path, grid={"optim.learning_rate": values})]
    assert len({name.casefold() for name in names}) == 3
    assert all(
        re.fullmatch(r"digits-quadratic_optim\.learning_rate_0\.\d+-[0-9a-f]{8}-0", name)
        for name in names
    )
    assert [run.name for run in plan(tmp_path, seeds=(7,))] == [f"{RECIPE}-7"]


@pytest.mark.parametrize(
    "name", ["Upper", "../escape", "with space", "con:aux", "x" * 300, "ü", ".hidden"]
)
def test_any_name_of_a_recipe_gives_a_safe_folder(tmp_path, name):
    file = tmp_path / "mine.toml"
    file.write_text(recipe_to_toml(load_recipe(RECIPE)).replace(RECIPE, name, 1), encoding="utf-8")
    (run,) = plan(tmp_path, (file,))
    assert run.folder.parent == tmp_path
    assert re.fullmatch(r"[a-z0-9-][a-z0-9._-]{5,100}-0", run.name)


def test_command_repeats_the_recipe(tmp_path):
    (run,) = plan(tmp_path, seeds=(3,))
    expected = [
        "-m",
        "convattn",
        "train",
        str(tmp_path / f"{RECIPE}-3.toml"),
        "-o",
        str(run.folder),
    ]
    assert train_command(run) == [sys.executable, *expected]
    run.folder.mkdir()
    assert train_command(run) == [sys.executable, *expected]
    (run.folder / "recipe.toml").touch()
    assert train_command(run) == [sys.executable, *expected, "--resume"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipes": ()}, r"^recipes must be a list of at least one recipe, but is \(\)$"),
        (
            {"recipes": RECIPE},
            f"^recipes must be a list of at least one recipe, but is '{RECIPE}'$",
        ),
        ({"seeds": ()}, r"^seeds must be at least one number, each once, but is \[\]$"),
        ({"seeds": (1, 1)}, r"^seeds must be at least one number, each once, but is \[1, 1\]$"),
        ({"overrides": {"seed": "3"}}, "^seed cannot be set in a study: use seeds$"),
        ({"grid": {"seed": ("3",)}}, "^seed cannot be set in a study: use seeds$"),
        (
            {"grid": {"model.heads": ("3", "3")}},
            r"^grid model\.heads must be a list of at least one value, each once",
        ),
        ({"grid": {"model.heads": "49"}}, r"^grid model\.heads must be a list of .* but is '49'$"),
        (
            {"grid": {"model.heads": ("3",)}, "overrides": {"model.heads": "4"}},
            "is in overrides and in grid",
        ),
        (
            {"grid": {"optim.learning_rate": ("3e-3", "0.003")}},
            r"=3e-3\] and .*=0\.003\] are the same run: leave one out$",
        ),
        (
            {"recipes": (RECIPE, RECIPE)},
            f"^two recipes are called {RECIPE}: rename one$",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        plan(tmp_path, **options)


def test_runs_that_measure_other_images_are_refused_before_anything_runs(tmp_path):
    expected = r"^runs on different data cannot be compared \(.*=100\]: digits, 100 held out, .*=200\]: digits, 200 "
    with pytest.raises(DataError, match=expected):
        plan(tmp_path, grid={"data.held_out": ("100", "200")})
    assert len(plan(tmp_path, seeds=(0, 1), overrides={"data.held_out": "100"})) == 2


def test_a_study_stopped_before_its_first_checkpoint_goes_on(tmp_path):
    runs = plan(tmp_path)
    runs[0].log.write_text(
        "$ convattn train\n"
    )  # all that is there when the first run is stopped while it starts
    require_own(tmp_path, runs)
    runs[0].log.rename(tmp_path / "other-0.log")
    with pytest.raises(
        ArgumentError,
        match=r"^output must be the folder of a study, new or empty, but .* is not empty$",
    ):
        require_own(tmp_path, runs)


@pytest.mark.parametrize("baseline", ["nobody", RECIPE])
def test_baseline_must_be_one_of_the_labels(tmp_path, baseline):
    with pytest.raises(UnknownNameError, match=f"unknown baseline '{baseline}'"):
        study([RECIPE], output=tmp_path / "s", grid={"model.heads": ("4", "9")}, baseline=baseline)
    assert not (tmp_path / "s").exists()
