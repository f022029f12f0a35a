import json
import math
from dataclasses import FrozenInstanceError, asdict, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convattn.convert.certificate import (
    Certificate,
    LeftAlone,
    NetworkCertificate,
)
from convattn.errors import ArgumentError, CheckpointError
from convattn.provenance import DataRecord, RunRecord
from convattn.record import Record

CERTIFICATE = Certificate(
    direction="conv_to_attention",
    source="Conv2d(3, 5, kernel_size=(3, 3))",
    result="RelativeAttention2d(3, 5)",
    dtype="float32",
    heads=9,
    sharpness=5.0,
    exact=False,
    leak=0.03,
    bound_per_unit=0.7,
    rounding_per_unit=1e-4,
    rounding_at_zero=1e-5,
    check_shape=(2, 3, 7, 11),
    check_seed=0,
    bound=2.5,
    measured_error=0.125,
    rounding=1e-6,
    largest=2.0,
    discarded=((0.5, 0.25), ()),
    verdict="different",
    kernel_size=(3, 3),
    weights="0f",
)
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
LAYER = replace(
    CERTIFICATE,
    direction="attention_to_conv",
    source="RelativeAttention2d(3, 5, num_heads=9)",
    result="Conv2d(3, 5, kernel_size=(3, 7))",
    kernel_size=(3, 7),
    any_size=False,
    name="blocks.0.mixer",
    aliases=("blocks.1.mixer",),
    path="convolution",
    notes=("it no longer shares weights with head.weight",),
)
NETWORK = NetworkCertificate(
    direction="network_to_conv",
    source="AttentionNet",
    result="ConvNet",
    dtype="float32",
    impl=None,
    layers=(LAYER,),
    left_alone=(
        LeftAlone("blocks.2.mixer", "RelativeAttention2d", "its scores depend on content"),
    ),
    images="the images given",
    shapes=((2, 3, 8, 8),),
    reference="float64",
    measured_error=0.25,
    rounding=1e-5,
    largest=4.0,
    tolerance=0.01,
    top1_total=2,
    top1_changed=1,
    accuracy_before=0.5,
    accuracy_after=1.0,
    verdict="different",
    weights="0f",
    not_covered=("another thing",),
)
BARE_NETWORK = replace(
    NETWORK,
    impl="auto",
    layers=(
        replace(
            LAYER, aliases=(), exact=True, path=None, verdict="failed", notes=(), any_size=True
        ),
    ),
    left_alone=(),
    images=None,
    shapes=(),
    reference=None,
    measured_error=None,
    rounding=None,
    largest=None,
    tolerance=None,
    top1_total=None,
    top1_changed=None,
    accuracy_before=None,
    accuracy_after=None,
    verdict="failed",
    not_covered=(),
)
RECORDS = [CERTIFICATE, DATA, RUN, LAYER, NETWORK, BARE_NETWORK]
RECORDS += [replace(CERTIFICATE, sharpness=None, leak=-math.inf), replace(RUN, revision="ab")]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back_from_text_and_from_files(record, tmp_path):
    kind = type(record)
    assert kind.from_json(record.to_json()) == record
    path = record.save(tmp_path / "record.json")
    assert kind.load(str(path)) == record
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_text_is_plain_json_with_kind_and_version(record):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(record.to_json(), parse_constant=refuse)
    assert content.pop("record") == type(record).__name__
    assert content.pop("schema_version") == record.schema_version
    assert content.keys() == asdict(record).keys()


def test_not_a_number_comes_back():
    record = replace(CERTIFICATE, measured_error=math.nan)
    assert math.isnan(Certificate.from_json(record.to_json()).measured_error)


@given(
    st.floats(allow_nan=False),
    st.tuples(st.tuples(st.floats(allow_nan=False)), st.just(())),
    st.text(),
)
def test_every_number_and_text_comes_back(number, discarded, text):
    record = replace(CERTIFICATE, bound=number, discarded=discarded, source=text)
    assert Certificate.from_json(record.to_json()) == record


def test_records_are_frozen():
    with pytest.raises(FrozenInstanceError):
        CERTIFICATE.verdict = "failed"  # type: ignore[misc]


def changed(**changes):
    content = json.loads(CERTIFICATE.to_json())
    content.update(changes)
    return json.dumps({key: value for key, value in content.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not a Certificate: the text is not JSON")
            for text in ("", "[" * 50_000, "9" * 9999)
        ),
        (CERTIFICATE.to_json()[:-20], "not a Certificate: the text is not JSON"),
        ("[]", "not a Certificate of schema version 1: found None"),
        ("{}", r"not a Certificate of schema version 1: found \(None, None\)"),
        (
            changed(schema_version=2),
            r"not a Certificate of schema version 1: found \('Certificate', 2\)",
        ),
        (DATA.to_json(), r"not a Certificate of schema version 1: found \('DataRecord', 1\)"),
        (changed(heads=...), "not a Certificate: heads is missing; it must be an integer"),
        (
            changed(notes=...),
            "not a Certificate: notes is missing; it must be a list, each item text",
        ),
        (
            changed(xyzzy=1),
            r"not a Certificate: unknown key 'xyzzy'\. Known: verdict, .*, notes",
        ),
        (changed(head=1), "not a Certificate: unknown key 'head': did you mean 'heads'"),
        (changed(heads="nine"), "not a Certificate: heads must be an integer, but is 'nine'"),
        (changed(heads=9.0), "not a Certificate: heads must be an integer, but is 9.0"),
        (
            changed(verdict="passed"),
            "verdict must be 'exact' or 'close' or 'different' or 'failed', but is 'passed'",
        ),
        (changed(heads=True), "not a Certificate: heads must be an integer, but is True"),
        (changed(leak="much"), "not a Certificate: leak must be a number, but is 'much'"),
        (changed(leak=True), "not a Certificate: leak must be a number, but is True"),
        (changed(leak=None), "not a Certificate: leak must be a number, but is None"),
        (
            changed(check_shape=3),
            "not a Certificate: check_shape must be a list, each item an integer, but is 3",
        ),
        (
            changed(discarded=[[1.0], ["one"]]),
            r"not a Certificate: discarded\[1\]\[0\] must be a number, but is 'one'",
        ),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(CheckpointError, match=message):
        Certificate.from_json(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": {"train": "many"}}, "data.counts.train must be an integer, but is 'many'"),
        ({"counts": [7]}, r"data.counts must be a table, but is \[7\]"),
        ({"sources": "here"}, "unknown key 'data.sources': did you mean 'source'"),
        (None, "data must be a table, but is None"),
    ],
)
def test_a_record_within_a_record_is_checked_too(changes, message):
    content = json.loads(RUN.to_json())
    data = changes and content["data"] | changes
    with pytest.raises(CheckpointError, match=f"not a RunRecord: {message}"):
        RunRecord.from_json(json.dumps({**content, "data": data}))


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ({"name": "a"}, r"left_alone\[0\]\.kind is missing; it must be text"),
        (["a"], r"left_alone\[0\] must be a table, but is \['a'\]"),
    ],
)
def test_what_was_left_alone_is_checked(left, message):
    with pytest.raises(CheckpointError, match=f"not a NetworkCertificate: {message}"):
        NetworkCertificate.from_json(
            json.dumps({**json.loads(NETWORK.to_json()), "left_alone": [left]})
        )


def test_a_file_that_holds_another_thing_is_named(tmp_path):
    (tmp_path / "changed.json").write_text(changed(heads="nine"), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"changed\.json: not a Certificate: heads must be an integer"
    ):
        Certificate.load(tmp_path / "changed.json")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"cannot read Certificate from .*missing.json: .*No such file"
    ):
        Certificate.load(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name in ("binary.json", ""):
        with pytest.raises(CheckpointError, match="cannot read Certificate from"):
            Certificate.load(tmp_path / name)
    with pytest.raises(ArgumentError, match="path must be a file in a folder that exists"):
        CERTIFICATE.save(tmp_path / "nowhere" / "record.json")


def test_a_new_version_refuses_the_old():
    @dataclass(frozen=True)
    class Newer(Record):
        schema_version = 2
        value: float

    assert Newer.from_json(Newer(1).to_json()) == Newer(1.0)
    with pytest.raises(CheckpointError, match="not a Newer of schema version 2"):
        Newer.from_json(Newer(1).to_json().replace('"schema_version": 2', '"schema_version": 1'))


def test_summary_says_what_is_promised_and_what_was_measured():
    lines = CERTIFICATE.summary().splitlines()
    assert (
        lines[0]
        == "conv to attention: different (by 0.062 of the largest output, 9 heads, float32)"
    )
    assert lines[1].endswith("Conv2d(3, 5, kernel_size=(3, 3))")
    text = " ".join(CERTIFICATE.summary().split())
    for part in (
        "measured error 0.125 on a standard normal input (2, 3, 7, 11)",
        "allowed 2.5 = bound 2.5 + rounding 1e-06",
        "sharpness 5 per pixel²; mass off the tap at most 0.03",
        "discarded singular values up to 0.5 (limited head width)",
        "not covered centres rounded when the layer is cast to a narrower dtype",
    ):
        assert part in text


def test_summary_of_the_way_back_speaks_of_the_window():
    text = replace(CERTIFICATE, direction="attention_to_conv").summary()
    assert text.startswith("attention to conv: different")
    assert "mass outside the window at most 0.03" in text
    assert "differs         by attention outside the window (the leak), and at borders" in text


def test_summary_leaves_out_what_there_is_not():
    made = replace(CERTIFICATE, sharpness=None, discarded=(), verdict="exact", exact=True)
    text = made.summary()
    assert text.startswith("conv to attention: exact (9 heads, float32)")
    for word in ("sharpness", "discarded", "differs", "made smaller", "not covered"):
        assert word not in text


def test_summary_of_a_network_says_each_layer_and_the_whole():
    first, *_ = NETWORK.summary().splitlines()
    outcome = "different (by 0.062 of the largest output, 1 of 2 decisions changed, 1 layer, 9 heads, float32)"
    assert first == f"network to conv: {outcome}"
    text = " ".join(NETWORK.summary().split())
    for part in (
        "from AttentionNet to ConvNet",
        "paths 1 convolution",
        "measured error 0.25 of 4, on the images given",
        "rounding 1e-05, against float64",
        "limit 0.01 of the largest output, for a result that is close",
        "top-1 changed 1 of 2",
        "differs by attention outside the window (the leak), and at borders, where attention keeps to pixels",
        "accuracy 50.00% before, 100.00% after",
        'made smaller by a larger window, or none; at borders by borders="exact" (`--borders exact`)',
        "layer blocks.0.mixer: different, leak 0.03, 9 heads, kernel 3 x 7, convolution, error 0.125 of 2, bound 2.5",
        "note it no longer shares weights with head.weight (blocks.0.mixer)",
        "note not covered: images of other sizes than 7 x 11 (blocks.0.mixer)",
        "left alone blocks.2.mixer (RelativeAttention2d): its scores depend on content",
        "not covered another thing",
    ):
        assert part in text


def test_summary_of_a_network_leaves_out_what_there_is_not():
    text = BARE_NETWORK.summary()
    assert text.startswith("network to conv: failed (1 layer, 9 heads, float32)")
    assert (
        "layer           blocks.0.mixer: failed, 9 heads, kernel 3 x 7, not reached, error" in text
    )
    for word in (
        "measured error",
        "top-1",
        "accuracy",
        "differs",
        "left alone",
        "not covered",
        "note",
    ):
        assert word not in text
