"""Records where the heads of quadratic encodings look during a run."""

import io
import math
from collections.abc import Iterable, Iterator

import pyarrow as pa
import torch
from pyarrow import parquet
from torch import nn

from convattn.encodings import GeneralizedQuadratic, Quadratic
from convattn.errors import RecipeError, must_be
from convattn.models import AttentionNet

HEAD_COLUMNS = pa.schema(
    [
        ("step", pa.int64()),
        ("epoch", pa.int64()),
        ("layer", pa.int64()),
        ("head", pa.int64()),
        ("centre_row", pa.float64()),
        ("centre_col", pa.float64()),
        ("sharpness", pa.float64()),
        ("precision_row_row", pa.float64()),
        ("precision_row_col", pa.float64()),
        ("precision_col_col", pa.float64()),
    ]
)
"""Columns of ``heads.parquet``: centres in pixels; sharpness α = tr Σ⁻¹ / 4 and the entries of Σ⁻¹ in 1/pixel²."""


def quadratic_encodings(network: nn.Module) -> list[Quadratic | GeneralizedQuadratic]:
    """Returns the quadratic encodings of a network's layers, first to last."""
    return [module for module in network.modules() if isinstance(module, Quadratic | GeneralizedQuadratic)]


def require_quadratic_heads(network: nn.Module, reinitialise: tuple[int, ...]) -> None:
    """Raises RecipeError if heads are to get new random values in some epochs, but that would fail or do nothing."""
    able = isinstance(network, AttentionNet) and not network.content and quadratic_encodings(network)
    if reinitialise and not able:
        expectation = "left out where the network has no quadratic heads without content"
        raise RecipeError(must_be("training.reinitialise", expectation, reinitialise))


class HeadTrace:
    """Centres and sharpness: a row for each head, two-dimensional quadratic layer and recorded moment.

    Example:
        >>> from convattn.models import AttentionNet
        >>> trace = HeadTrace(AttentionNet(width=8, depth=2, heads=3, ffn=8))
        >>> trace.record(step=0, epoch=0)
        >>> len(trace.rows)
        6
    """

    def __init__(self, network: nn.Module) -> None:
        self._encodings = [encoding for encoding in quadratic_encodings(network) if encoding.dims == 2]
        self.rows: list[dict[str, float]] = []

    def record(self, *, step: int, epoch: int) -> None:
        """Adds the present centres and sharpness of every head."""
        for layer, encoding in enumerate(self._encodings):
            centres = encoding.centres.detach().double().cpu().tolist()
            for head, (centre, precision) in enumerate(zip(centres, _precisions(encoding), strict=True)):
                position = {"step": step, "epoch": epoch, "layer": layer, "head": head}
                self.rows.append({**position, "centre_row": centre[0], "centre_col": centre[1], **precision})

    def complete(self, steps: Iterable[int]) -> bool:
        """Tells whether the rows are those of every head after each of these steps, with finite numbers."""
        heads = [(layer, n) for layer, encoding in enumerate(self._encodings) for n in range(encoding.num_heads)]
        expected = [(step, *head) for step in steps for head in heads]
        finite = all(value is not None and math.isfinite(value) for row in self.rows for value in row.values())
        return finite and [(row["step"], row["layer"], row["head"]) for row in self.rows] == expected

    def to_parquet(self) -> bytes:
        """Returns the rows as a parquet file with `HEAD_COLUMNS`."""
        buffer = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(self.rows, schema=HEAD_COLUMNS), buffer, write_page_checksum=True)
        return buffer.getvalue()


def _precisions(encoding: Quadratic | GeneralizedQuadratic) -> Iterator[dict[str, float]]:
    """Yields Σ⁻¹ and the sharpness of each head; for −α‖δ − Δ‖², Σ⁻¹ is 2α times the identity."""
    if isinstance(encoding, GeneralizedQuadratic):
        matrices = encoding.precision
    else:
        matrices = 2 * encoding.sharpness[:, None, None] * torch.eye(2, device=encoding.centres.device)
    for matrix in matrices.detach().double().cpu():
        (row_row, row_col), (_, col_col) = matrix.tolist()
        yield {
            "sharpness": (row_row + col_col) / 4,
            "precision_row_row": row_row,
            "precision_row_col": row_col,
            "precision_col_col": col_col,
        }
