"""Reports of heads as parquet tables: a row for each head."""

import dataclasses
import hashlib
import io
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from convattn.errors import CheckpointError, optional_module
from convattn.files import write_atomically
from convattn.heads.head_report import HEAD_NUMBERS, Estimate, HeadReport, HeadStatistics

_REPORT = b"convattn.report"
"""Key of the table's metadata under which everything that is not of one head stands, as JSON."""

_DIGEST = b"convattn.sha256"
"""Key of the SHA-256 of that JSON; pages of the table have checksums of their own."""

_MEASURED = "measured"
_LIST_NAMES = ("hard_shift", "prefix_weights", "prefix_maps", "kernel", "position_kernel")


def _schema(pa: ModuleType) -> Any:
    """Returns the columns of the table."""
    lists = pa.list_(pa.float64())
    return pa.schema(
        [
            ("layer", pa.string()),
            ("depth", pa.int64()),
            ("condition", pa.string()),
            ("head", pa.int64()),
            *((name, pa.float64()) for number in HEAD_NUMBERS for name in (number, f"{number}_error")),
            ("shift", lists),
            ("shift_error", lists),
            ("hard_shift", lists),
            ("prefix_weights", lists),
            ("prefix_maps", pa.list_(lists)),
            ("kernel", lists),
            ("position_kernel", lists),
        ]
    )


def write_table(report: HeadReport, path: str | os.PathLike[str]) -> Path:
    """Writes a report as a parquet file: a row for each head, the rest in the metadata."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    rows = []
    for depth, layer in enumerate(report.layers):
        parts = {_MEASURED: layer.measured, **{item.name: item.measured for item in layer.controls}}
        for condition, part in parts.items():
            place = {"layer": layer.name, "depth": depth, "condition": condition}
            rows += [{**place, **_row(head)} for head in part.heads]
    rest = _map_statistics(json.loads(report.to_json()), lambda part, *_: {**part, "heads": []})
    text = json.dumps(rest).encode()
    table = pa.Table.from_pylist(rows, schema=_schema(pa))
    table = table.replace_schema_metadata({_REPORT: text, _DIGEST: hashlib.sha256(text).hexdigest()})
    buffer = io.BytesIO()
    pa.parquet.write_table(table, buffer, write_page_checksum=True)
    return write_atomically(path, buffer.getvalue())


def read_table(path: str | os.PathLike[str]) -> HeadReport:
    """Reads a report from a parquet file that `write_table` wrote; another file raises CheckpointError."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    try:
        table = pa.parquet.read_table(path, page_checksum_verification=True)
        known = table.schema.metadata or {}
        digest = hashlib.sha256(known[_REPORT]).hexdigest().encode()
        if known.get(_DIGEST, digest) != digest:  # older tables have none
            raise ValueError("its metadata are not what was written")
        rest = json.loads(known[_REPORT])
        heads: dict[tuple[int, str], list[Any]] = {}
        for row in table.to_pylist():
            heads.setdefault((row["depth"], row["condition"]), []).append(_head(row))
        whole = _map_statistics(rest, lambda part, *place: {**part, "heads": heads[place]})
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read a report from {path}: {type(error).__name__}: {error}") from None
    return HeadReport.from_json(json.dumps(whole))


def _row(head: HeadStatistics) -> dict[str, Any]:
    row: dict[str, Any] = {
        "head": head.head,
        "shift": [one.value for one in head.shift],
        "shift_error": [one.error for one in head.shift],
    }
    for name in HEAD_NUMBERS:
        found: Estimate = getattr(head, name)
        row |= {name: found.value, f"{name}_error": found.error}
    return row | {name: getattr(head, name) for name in _LIST_NAMES}


def _head(row: dict[str, Any]) -> dict[str, Any]:
    """Makes the plain values of a head, as its JSON has them."""
    shift = [_estimate(*pair) for pair in zip(row["shift"], row["shift_error"], strict=True)]
    numbers = {name: _estimate(row[name], row[f"{name}_error"]) for name in HEAD_NUMBERS}
    lists = {name: row[name] for name in _LIST_NAMES}
    made = {"head": row["head"], "shift": shift, **numbers, **lists}
    return {item.name: made[item.name] for item in dataclasses.fields(HeadStatistics)}


def _estimate(value: float, error: float) -> dict[str, Any]:
    return {"value": _plain(value), "error": _plain(error)}


def _plain(value: float) -> float | str:
    return value if value - value == 0 else repr(value)


def _map_statistics(report: dict[str, Any], change: Any) -> dict[str, Any]:
    """Changes the statistics of every layer and every control of a report in plain values."""
    layers = []
    for depth, layer in enumerate(report["layers"]):
        controls = [{**item, "measured": change(item["measured"], depth, item["name"])} for item in layer["controls"]]
        layers.append({**layer, "measured": change(layer["measured"], depth, _MEASURED), "controls": controls})
    return {**report, "layers": layers}
