import random

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from convattn.errors import CheckpointError
from convattn.heads.head_snapshots import HEAD_COLUMNS, HEADS, read_heads
from convattn.lab.head_trace import HeadTrace
from convattn.lab.tables import write_parquet
from convattn.models import AttentionNet


def record(folder, encoding="quadratic"):
    torch.manual_seed(0)
    network = AttentionNet(encoding, in_channels=1, width=5, depth=2, heads=3, ffn=7)
    with torch.no_grad():  # whole numbers, so that products are exact
        for block in network.blocks:
            if encoding == "quadratic":
                block.mixer.encoding.root_sharpness.copy_(torch.tensor([1.0, 2.0, 3.0]))
            else:
                block.mixer.encoding.shape.copy_(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    trace = HeadTrace(network)
    trace.record(step=0, epoch=0)
    with torch.no_grad():
        network.blocks[1].mixer.encoding.centres += 1
    trace.record(step=11, epoch=1)
    write_parquet(folder / HEADS, trace.rows, HEAD_COLUMNS)
    return network


def test_heads_come_back_by_time_and_layer(tmp_path):
    network = record(tmp_path)
    snapshots = read_heads(tmp_path)
    assert [(item.epoch, item.step, item.layer) for item in snapshots] == [
        (0, 0, 0),
        (0, 0, 1),
        (1, 11, 0),
        (1, 11, 1),
    ]
    for layer in (0, 1):
        encoding = network.blocks[layer].mixer.encoding
        assert snapshots[2 + layer].centres.tolist() == encoding.centres.double().tolist()
        assert snapshots[2 + layer].precisions.shape == (3, 2, 2)
        for precision, sharpness in zip(
            snapshots[2 + layer].precisions, encoding.sharpness.tolist(), strict=True
        ):
            assert precision.tolist() == [[2 * sharpness, 0], [0, 2 * sharpness]]
    moved = torch.from_numpy(snapshots[3].centres - snapshots[1].centres)
    assert (moved - 1).abs().max() < 1e-6
    assert snapshots[2].centres.tolist() == snapshots[0].centres.tolist()


def test_shapes_of_generalised_heads_come_back(tmp_path):
    network = record(tmp_path, "generalized_quadratic")
    expected = network.blocks[0].mixer.encoding.precision.detach().double()
    assert read_heads(tmp_path)[0].precisions.tolist() == expected.tolist()


UNREADABLE = {
    "Arrow": lambda file: file.write_bytes(b"not parquet"),
    "KeyError: .*epoch": lambda file: parquet.write_table(pa.table({"step": [0]}), file),
}


def test_a_run_without_centres_is_said_to_have_none(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"holds no heads\.parquet: .* if their heads have centres"
    ):
        read_heads(tmp_path)


@pytest.mark.parametrize("message", UNREADABLE)
def test_a_file_that_holds_no_heads_is_named(tmp_path, message):
    UNREADABLE[message](tmp_path / HEADS)
    with pytest.raises(
        CheckpointError, match=rf"cannot read heads from .*heads\.parquet: {message}"
    ):
        read_heads(tmp_path)


def test_a_changed_byte_is_found_or_changes_nothing(tmp_path):
    """Pages of numbers have checksums; what else a file says may be of no meaning."""
    record(tmp_path)
    content, draw, found = (tmp_path / "heads.parquet").read_bytes(), random.Random(0), 0
    whole = read_heads(tmp_path)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (tmp_path / "heads.parquet").write_bytes(damaged)
        try:
            read = read_heads(tmp_path)
        except CheckpointError:
            found += 1
            continue
        assert [shot.centres.tolist() for shot in read] == [shot.centres.tolist() for shot in whole]
        assert [shot.precisions.tolist() for shot in read] == [
            shot.precisions.tolist() for shot in whole
        ]
    assert found > 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"centre_row": "up"}, "up"),
        ({"centre_row": [1.0, 2.0]}, "list"),
        ({"centre_row": None}, "must be finite"),
        ({"centre_col": float("nan")}, "must be finite"),
        ({"precision_row_row": float("inf")}, "must be finite"),
        ({"layer": -5}, "count from 0"),
        ({"layer": 0.5}, "0.5"),
        ({"head": 0}, r"must have each head once, but has \[0, 0, 0\]"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tmp_path, changes, message):
    record(tmp_path)
    rows = [
        {**row, **changes} for row in parquet.read_table(tmp_path / "heads.parquet").to_pylist()
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "heads.parquet")
    with pytest.raises(CheckpointError, match=rf"cannot read heads from .*{message}"):
        read_heads(tmp_path)
