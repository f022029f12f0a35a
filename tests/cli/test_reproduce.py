"""`convattn reproduce`: tables and figures of runs."""

import re

import pytest
from tests.cli.command import run
from tests.lab.run_cases import make_run

from convattn.lab import load_recipe
from convattn.lab.reproduction import TARGETS, Reproduction
from convattn.provenance import RunRecord


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "here", "sa-quadratic", scale="small")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_figure_is_made_where_it_is_told(runs, tmp_path, capsys):
    assert run(f"reproduce fig4 --runs {runs} --scale small -o there/figure") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "fig4: made\n" in out
    files = ["fig4.parquet", "fig4.png", "fig4.svg"]
    assert out.endswith("".join(f"wrote there/figure/{file}\n" for file in files))
    written = sorted(item.name for item in (tmp_path / "there" / "figure").iterdir())
    assert written == [*files, "reproduction.json"]


def test_incomplete_is_exit_code_1_and_earlier_output_is_kept(runs, tmp_path, capsys):
    (tmp_path / "reproduce-all").mkdir()
    (tmp_path / "reproduce-all" / "reproduction.json").write_text("precious")
    assert run(f"reproduce all --runs {runs} --scale small --json") == 1
    result = Reproduction.from_json(capsys.readouterr().out)
    assert result == Reproduction.load(tmp_path / "reproduce-all-2" / "reproduction.json")
    assert [item.target for item in result.targets if item.complete] == ["fig3", "fig4"]
    assert [item.target for item in result.targets] == list(TARGETS)
    assert [item.name for item in (tmp_path / "reproduce-all").iterdir()] == ["reproduction.json"]
    assert (tmp_path / "reproduce-all" / "reproduction.json").read_text() == "precious"


def test_a_table_with_missing_rows_says_how_many(runs, tmp_path, capsys):
    assert run(f"reproduce table1 --runs {runs} --scale small") == 1
    printed = capsys.readouterr().out
    count = len(TARGETS["table1"].recipes)
    line = f"table1: made without {count - 1} of {count} recipes; missing resnet18, "
    assert re.search(f"^{line}", printed, flags=re.MULTILINE)
    listed = r"missing runs: resnet18, .*; --train trains them$"
    assert re.search(listed, printed, flags=re.MULTILINE)


def test_mistakes_are_exit_code_2(capsys):
    assert run("reproduce fig3") == 2
    assert "runs must be a folder that exists, but is 'runs'" in capsys.readouterr().err


def test_missing_matplotlib_is_told_before_anything_is_made(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    assert run(f"reproduce all --runs {runs} -o made") == 2
    assert re.search(
        r'this needs matplotlib, .*pip install "convattn\[train\]"',
        capsys.readouterr().err,
    )
    assert not (tmp_path / "made").exists()


def test_what_is_missing_is_trained_at_scale_tiny_and_shown(tmp_path, capsys, monkeypatch):
    """From nothing: the pruned network starts from the generalised one, which is trained first; an epoch each."""

    def for_an_epoch(name, *, scale, overrides):
        short = {"training.epochs": "1", "training.batch_size": "240"}
        return load_recipe(name, scale=scale, overrides={**overrides, **short})

    monkeypatch.setattr("convattn.lab.reproduction.load_recipe", for_an_epoch)
    assert run("reproduce fig13 --scale tiny") == 0
    out, err = capsys.readouterr()
    assert "fig13: made\n" in out
    names = ["sa-quadratic-generalized-pruned-tiny-0", "sa-quadratic-generalized-tiny-0"]
    assert sorted(item.name for item in (tmp_path / "runs").iterdir()) == names
    trained = [line.split("/")[1] for line in err.splitlines() if line.startswith("training ")]
    assert trained == names[::-1]
    first = RunRecord.load(tmp_path / "runs" / names[0] / "record.json")
    assert first.recipe["start"]["folder"] == f"runs/{names[1]}"
