"""`convattn reproduce`: tables and figures of runs."""

import re

import pytest
from tests.cli.command import run
from tests.lab.run_cases import make_run

from convattn.lab.reproduction import TARGETS, Reproduction


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


def test_a_table_with_missing_rows_says_how_many_and_what_makes_each(runs, tmp_path, capsys):
    assert run(f"reproduce table1 --runs {runs} --scale small") == 1
    printed = capsys.readouterr().out
    count = len(TARGETS["table1"].recipes)
    line = f"table1: made without {count - 1} of {count} recipes; missing resnet18, "
    assert re.search(f"^{line}", printed, flags=re.MULTILINE)
    listed = printed.partition("missing runs; each of these makes a row:\n")[2].splitlines()
    assert listed[0].startswith("  convattn train resnet18 --scale small -o ")


def test_nothing_made_is_exit_code_1_with_the_command(runs, tmp_path, capsys):
    assert run(f"reproduce fig5 --runs {runs} --scale small") == 1
    out = capsys.readouterr().out
    assert f"convattn train sa-learned --scale small -o {runs}/sa-learned-0\n" in out
    assert out.endswith("nothing was made\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fig1 --runs .", "unknown target 'fig1'"),
        ("fig3 --runs . --scale huge", "unknown scale 'huge'"),
        ("fig3 --runs nowhere", "runs must be a folder that exists, but is 'nowhere'"),
        ("fig3", "--runs"),
    ],
)
def test_mistakes_are_exit_code_2(arguments, message, capsys):
    assert run(f"reproduce {arguments}") == 2
    assert message in capsys.readouterr().err


def test_missing_matplotlib_is_told_before_anything_is_made(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    assert run(f"reproduce all --runs {runs} -o made") == 2
    assert re.search(
        r'this needs matplotlib, .*pip install "convattn\[train\]"',
        capsys.readouterr().err,
    )
    assert not (tmp_path / "made").exists()
