import pytest

from convattn.cli.output import first_free


@pytest.mark.parametrize(
    ("taken", "empty", "expected"),
    [
        ([], [], "run"),
        (["run"], [], "run-2"),
        (["run", "run-2"], [], "run-3"),
        (["run"], ["run-2"], "run-2"),
        ([], ["run"], "run"),
    ],
)
def test_first_free(tmp_path, taken, empty, expected):
    for name in taken:
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text("taken")
    for name in empty:
        (tmp_path / name).mkdir()
    assert first_free(tmp_path / "run") == tmp_path / expected
