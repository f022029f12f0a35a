import pyarrow as pa
import torch
from pyarrow import parquet

from convattn.encodings import ENCODINGS
from convattn.heads.head_snapshots import HEAD_COLUMNS
from convattn.lab.head_trace import HeadTrace
from convattn.lab.tables import write_parquet
from convattn.models import AttentionNet, ConvNet

SIZES = {"width": 8, "depth": 2, "heads": 3, "ffn": 8}


def read(trace, folder):
    write_parquet(folder / "heads.parquet", trace.rows, HEAD_COLUMNS)
    return parquet.read_table(folder / "heads.parquet")


def test_quadratic_heads_are_recorded_as_they_are(tmp_path):
    network = AttentionNet("quadratic", **SIZES)
    trace = HeadTrace(network)
    trace.record(step=5, epoch=1)
    rows = read(trace, tmp_path).to_pylist()
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in (0, 1) for head in (0, 1, 2)
    ]
    for row in rows:
        encoding = network.blocks[row["layer"]].mixer.encoding
        centre, root = encoding.centres[row["head"]], encoding.root_sharpness[row["head"]]
        assert [row["centre_row"], row["centre_col"]] == centre.tolist()
        assert abs(row["sharpness"] - root.item() ** 2 / 2) <= 2**-23 * row["sharpness"]
        assert (row["step"], row["epoch"]) == (5, 1)
        assert (row["precision_row_row"], row["precision_row_col"]) == (2 * row["sharpness"], 0)


def test_generalised_heads_are_recorded_with_their_precision(tmp_path):
    network = AttentionNet("generalized_quadratic", **SIZES)
    trace = HeadTrace(network)
    trace.record(step=0, epoch=0)
    row, shape = (
        read(trace, tmp_path).to_pylist()[4],
        network.blocks[1].mixer.encoding.shape[1].detach(),
    )
    precision = torch.tensor(
        [
            [row["precision_row_row"], row["precision_row_col"]],
            [row["precision_row_col"], row["precision_col_col"]],
        ]
    )
    rounding = (
        4 * torch.finfo(torch.float32).eps * (shape.T.abs() @ shape.abs())
    )  # two products and a sum, twice
    assert ((precision - shape.T @ shape).abs() <= rounding).all()
    assert row["sharpness"] == (row["precision_row_row"] + row["precision_col_col"]) / 4


def test_rows_follow_the_network(tmp_path):
    network = AttentionNet("quadratic", **SIZES)
    trace = HeadTrace(network)
    trace.record(step=0, epoch=0)
    with torch.no_grad():
        network.blocks[0].mixer.encoding.centres += 1
    trace.record(step=3, epoch=1)
    table = read(trace, tmp_path)
    assert table.schema.equals(pa.schema(HEAD_COLUMNS))
    before, after = table["centre_row"][0].as_py(), table["centre_row"][6].as_py()
    assert abs(after - before - 1) < 1e-6


def test_heads_leave_rows_if_they_have_centres_and_widths():
    for name, kind in ENCODINGS.items():
        if name == "shift":
            continue
        trace = HeadTrace(AttentionNet(name, **SIZES))
        trace.record(step=0, epoch=0)
        assert len(trace.rows) == 6 * (kind.width_parameter is not None), name
    assert trace_of_a_slope(slope=3.0) == [9 / 2 / 2, 9 / 2, 0, 9 / 2]
    trace = HeadTrace(ConvNet(width=8, depth=1, ffn=8))
    trace.record(step=0, epoch=0)
    assert trace.rows == []


def trace_of_a_slope(slope):
    """Attention e^{−m|δ|} has the variance 2/m² along an axis."""
    network = AttentionNet("linear_distance", **SIZES).double()
    network.blocks[0].mixer.encoding.slope = slope
    trace = HeadTrace(network)
    trace.record(step=0, epoch=0)
    return [round(number, 12) for number in trace.rows[0][6:]]
