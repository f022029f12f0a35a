"""Where the quadratic heads of a network look, at moments of its training."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings import GeneralizedQuadratic, Quadratic
from convattn.heads.head_snapshots import HEAD_COLUMNS


def quadratic_encodings(network: nn.Module) -> list[Quadratic | GeneralizedQuadratic]:
    """Returns the quadratic encodings of a network's layers, first to last."""
    modules = network.modules()
    return [module for module in modules if isinstance(module, Quadratic | GeneralizedQuadratic)]


@final
class HeadTrace:
    """Centres and sharpness: a row for each head, two-dimensional quadratic layer and recorded moment.

    The columns are those of `convattn.heads.head_snapshots.HEAD_COLUMNS`.

    Example:
        >>> from convattn.models import AttentionNet
        >>> trace = HeadTrace(AttentionNet(width=8, depth=2, heads=3, ffn=8))
        >>> trace.record(step=0, epoch=0)
        >>> len(trace.rows)
        6
    """

    def __init__(self, network: nn.Module) -> None:
        encodings = quadratic_encodings(network)
        self._encodings = [encoding for encoding in encodings if encoding.dims == 2]
        self.rows: list[dict[str, float]] = []

    def record(self, *, step: int, epoch: int) -> None:
        """Adds the present centres and sharpness of every head."""
        for layer, encoding in enumerate(self._encodings):
            centres = encoding.centres.detach().double().cpu().tolist()
            precisions = _precisions(encoding).tolist()
            for head, (row, col) in enumerate(centres):
                (row_row, row_col), (_, col_col) = precisions[head]
                place = (step, epoch, layer, head, row, col)
                values = (*place, (row_row + col_col) / 4, row_row, row_col, col_col)
                self.rows.append(dict(zip(HEAD_COLUMNS, values, strict=True)))


def _precisions(encoding: Quadratic | GeneralizedQuadratic) -> Float[Tensor, "heads 2 2"]:
    """Returns Σ⁻¹ of each head in float64 on the CPU; for −α‖δ − Δ‖² it is 2α times the identity."""
    if isinstance(encoding, GeneralizedQuadratic):
        precisions = encoding.precision
    else:
        identity = torch.eye(2, device=encoding.centres.device)
        precisions = 2 * encoding.sharpness[:, None, None] * identity
    return precisions.detach().double().cpu()
