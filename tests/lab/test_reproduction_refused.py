"""Runs from which a figure or a table cannot be made."""

import pytest
from pyarrow import parquet
from tests.lab.run_cases import change_record, copy_run

from convattn import load_network
from convattn.errors import DataError
from convattn.lab.paper_figures import Material, make_attention
from convattn.lab.paper_table import table_page, table_rows
from convattn.lab.reproduction import reproduce
from convattn.lab.runs import find_runs, group_runs


def test_curves_without_any_metrics_say_why(runs, tmp_path):
    run = copy_run(runs, "convnet-0", tmp_path / "runs")
    (run / "metrics.jsonl").unlink()
    (result,) = reproduce(["fig2"], tmp_path / "runs", tmp_path / "out").targets
    assert str(result.problem).startswith(
        f"left out: cannot read metrics from {run / 'metrics.jsonl'}: "
    )
    assert result.files == ()


def test_a_run_that_recorded_no_heads_is_told(runs, tmp_path):
    path = copy_run(runs, "sa-quadratic-0", tmp_path / "runs") / "heads.parquet"
    parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    (result,) = reproduce(["fig3"], tmp_path / "runs", tmp_path / "out").targets
    assert result.problem == f"cannot read heads from {path}: ValueError: it holds none"
    assert result.files == ()


def test_a_run_of_another_kind_of_network_is_told(runs, tmp_path):
    run = copy_run(runs, "convnet-0", tmp_path / "runs")
    change_record(run, name="sa-learned-content")
    (result,) = reproduce(["fig6"], tmp_path / "runs", tmp_path / "out").targets
    kind = type(load_network(run)).__name__
    assert result.problem == f"{run} must hold an AttentionNet, but holds a {kind}"


def test_an_image_that_there_is_not_is_told(runs, tmp_path):
    recipe = "sa-learned-content"
    material = Material(group_runs(find_runs(runs).finished, "paper"), "paper")
    with pytest.raises(DataError, match=r"has \d+ test images, but fig8 needs 1000001$"):
        make_attention(material, "fig8", tmp_path, recipe=recipe, image=10**6)


def test_what_is_not_measured_is_left_open_in_the_table():
    empty = table_page(table_rows({})[0], "paper")
    assert "not yet measured" in empty
    assert "## Runs" not in empty
