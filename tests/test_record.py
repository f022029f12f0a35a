"""Records are JSON that comes back as it was, and says by name what is wrong with it."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convattn.errors import ArgumentError, CheckpointError
from convattn.provenance import DataRecord, RunRecord
from convattn.record import Record

DATA = DataRecord("digits", "scikit-learn", {"images": "0f"}, {"train": 7, "test": 3}, "by index")
RUN = RunRecord(
    name="tiny",
    claim="it learns",
    command="convattn train tiny",
    recipe={"model": {"width": 5, "encoding": "quadratic"}, "list": [1, 2.5, None]},
    seed=3,
    data=DATA,
    parameters=101,
    results={"test_accuracy": 0.5, "train_loss": math.inf},
    seconds=1.5,
    peak_memory=1024,
    resumed=0,
    hardware={"processor": "one"},
    versions={"python": "3.11"},
    started="2020-01-01T00:00:00+00:00",
    revision=None,
)


@dataclass(frozen=True)
class Sample(Record):
    """A record with fields of most types."""

    schema_version = 2

    count: int
    share: float
    words: str | None
    rows: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...] = ()


SAMPLE = Sample(3, 0.5, None, ((0.5, 0.25), ()), ("a note",))


@pytest.mark.parametrize(
    "record", [SAMPLE, RUN.data, RUN], ids=lambda record: type(record).__name__
)
def test_records_come_back_from_text_and_from_files(record, tmp_path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    kind = type(record)
    content = json.loads(record.to_json(), parse_constant=refuse)
    assert content.pop("record") == kind.__name__
    assert content.pop("schema_version") == record.schema_version
    assert content.keys() == asdict(record).keys()
    path = record.save(tmp_path / "record.json")
    assert kind.load(str(path)) == kind.from_json(record.to_json()) == record
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    with pytest.raises(FrozenInstanceError):
        record.name = "other"  # type: ignore[misc]


@settings(max_examples=25)
@given(st.floats(), st.lists(st.lists(st.floats(allow_nan=False))), st.text())
def test_every_number_and_text_comes_back(number, rows, text):
    record = replace(SAMPLE, share=number, rows=tuple(map(tuple, rows)), words=text)
    read = Sample.from_json(record.to_json())
    if math.isnan(number):
        assert math.isnan(read.share)
        record, read = replace(record, share=0.0), replace(read, share=0.0)
    assert read == record


def changed(**changes):
    content = {**json.loads(SAMPLE.to_json()), **changes}
    return json.dumps({key: value for key, value in content.items() if value is not ...})


OTHER = {
    "": "the text is not JSON",
    "[" * 50_000: "the text is not JSON",
    "9" * 9999: "the text is not JSON",
    SAMPLE.to_json()[:-20]: "the text is not JSON",
    "[]": "found None",
    "{}": r"found \(None, None\)",
    changed(schema_version=1): r"of schema version 2: found \('Sample', 1\)",
    DATA.to_json(): r"of schema version 2: found \('DataRecord', 1\)",
    changed(count=...): "count is missing; it must be an integer",
    changed(notes=...): "notes is missing; it must be a list, each item text",
    changed(coun=1): "unknown key 'coun': did you mean 'count'",
    changed(count=True): "count must be an integer, but is True",
    changed(share=None): "share must be a number, but is None",
    changed(rows=[[1.0], ["one"]]): r"rows\[1\]\[0\] must be a number, but is 'one'",
}


def test_other_text_is_refused():
    for text, message in OTHER.items():
        with pytest.raises(CheckpointError, match=f"not a Sample.*{message}"):
            Sample.from_json(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": {"train": "many"}}, "data.counts.train must be an integer, but is 'many'"),
        ({"sources": "here"}, "unknown key 'data.sources': did you mean 'source'"),
    ],
)
def test_a_record_within_a_record_is_checked_too(changes, message):
    content = json.loads(RUN.to_json())
    content["data"] |= changes
    with pytest.raises(CheckpointError, match=f"not a RunRecord: {message}"):
        RunRecord.from_json(json.dumps(content))


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    (tmp_path / "changed.json").write_text(changed(count="nine"), encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name, message in {
        "changed.json": r"changed\.json: not a Sample: count must be an integer",
        "missing.json": r"cannot read Sample from .*missing.json: .*No such file",
        "binary.json": "cannot read Sample from",
        "": "cannot read Sample from",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            Sample.load(tmp_path / name)
    with pytest.raises(ArgumentError, match="path must be a file in a folder that exists"):
        SAMPLE.save(tmp_path / "nowhere" / "record.json")


@dataclass(frozen=True)
class Summed(Sample):
    """A record with a summary."""

    def summary(self) -> str:
        """Returns words."""
        return f"{self.count} samples"


def test_a_record_prints_its_summary_and_has_a_short_repr():
    many = replace(SAMPLE, rows=((0.5,) * 1000,), notes=("a note",) * 1000, words="x" * 1000)
    assert repr(many) == str(many) == "Sample(count=3, share=0.5, …)"
    record = Summed(**{**asdict(many), "rows": many.rows})
    assert str(record) == "3 samples"
    assert repr(record) == "Summed(count=3, share=0.5, …)"
