"""Reads from a run's folder where its heads looked."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float

from convattn.errors import CheckpointError, optional_module
from convattn.files import AnyPath

HEADS = "heads.parquet"
"""The file in the folder of a run whose heads have centres and widths."""

HEAD_COLUMNS = {
    **dict.fromkeys(("step", "epoch", "layer", "head"), "int64"),
    **dict.fromkeys(("centre_row", "centre_col", "sharpness"), "float64"),
    **dict.fromkeys(("precision_row_row", "precision_row_col", "precision_col_col"), "float64"),
}
"""Columns of that file: centres in pixels; sharpness α = tr Σ⁻¹ / 4 and the entries of Σ⁻¹ in 1/pixel²."""


@dataclass(frozen=True, eq=False)
class HeadSnapshot:
    """The heads of one layer at one moment of a run.

    Attributes:
        epoch: Epochs done.
        step: Optimizer steps done.
        layer: Number of the layer among those whose heads have centres and widths, from 0.
        centres: Δ, (heads, 2), (row, col) in pixels.
        precisions: Σ⁻¹ of the attention exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)), (heads, 2, 2), in 1/pixel²; 2α times the identity
            for the score −α‖δ − Δ‖².
    """

    epoch: int
    step: int
    layer: int
    centres: Float[np.ndarray, "heads 2"]
    precisions: Float[np.ndarray, "heads 2 2"]


def read_heads(run: AnyPath) -> list[HeadSnapshot]:
    """Reads ``heads.parquet`` of a run's folder.

    Args:
        run: The folder.

    Returns:
        One snapshot for each layer at each moment recorded, by time and then by layer.

    Raises:
        CheckpointError: The folder has no such file (as runs of networks without such heads), or it is damaged or
            empty.
        MissingDependencyError: pyarrow is not installed.
    """
    path = Path(run) / HEADS
    pa = optional_module("pyarrow.parquet", "parquet")
    if not path.exists():
        raise CheckpointError(
            f"{run} holds no {HEADS}: runs have one if their heads have centres, as those of quadratic encodings"
        )
    try:
        table = pa.parquet.read_table(path, page_checksum_verification=True)
        rows = table.select([*HEAD_COLUMNS]).cast(pa.schema(HEAD_COLUMNS)).to_pylist()
        if not rows:
            raise ValueError("it holds none")
        rows.sort(key=lambda row: (row["step"], row["layer"], row["head"]))
        moments = groupby(rows, key=lambda row: (row["epoch"], row["step"], row["layer"]))
        return [_snapshot(*moment, list(heads)) for moment, heads in moments]
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"cannot read heads from {path}: {reason}") from None


def _snapshot(epoch: int, step: int, layer: int, rows: list[dict[str, float]]) -> HeadSnapshot:
    """Makes a snapshot of rows in the order of the heads; ValueError says what is wrong with them."""
    place = f"step {step}, layer {layer}"
    columns = {name: np.array([row[name] for row in rows], float) for name in HEAD_COLUMNS}
    if min(epoch, step, layer) < 0 or not np.isfinite(list(columns.values())).all():
        raise ValueError(
            f"{place}: numbers must be finite, and steps, epochs and layers count from 0"
        )
    heads = [row["head"] for row in rows]
    if heads != list(range(len(rows))):
        raise ValueError(f"{place} must have each head once, but has {heads}")
    centres = [columns["centre_row"], columns["centre_col"]]
    row_col = columns["precision_row_col"]
    precisions = np.array(
        [[columns["precision_row_row"], row_col], [row_col, columns["precision_col_col"]]]
    )
    return HeadSnapshot(epoch, step, layer, np.stack(centres, 1), np.moveaxis(precisions, 2, 0))
