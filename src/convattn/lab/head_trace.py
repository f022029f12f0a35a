"""Where the heads of a network look, at moments of its training."""

from typing import final

import torch
from torch import nn

from convattn.encodings import Encoding


def shaped_encodings(network: nn.Module) -> list[Encoding]:
    """Returns the encodings of a network's layers whose heads have centres and widths, first to last."""
    encodings = [module for module in network.modules() if isinstance(module, Encoding)]
    return [encoding for encoding in encodings if encoding.head_shapes is not None]


@final
class HeadTrace:
    """Centres and sharpness: a row for each head, recorded moment, and two-dimensional layer whose heads have them.

    A row has the columns of `convattn.heads.head_snapshots.HEAD_COLUMNS`.

    Example:
        >>> from convattn.models import AttentionNet
        >>> trace = HeadTrace(AttentionNet(width=8, depth=2, heads=3, ffn=8))
        >>> trace.record(step=0, epoch=0)
        >>> len(trace.rows)
        6
    """

    def __init__(self, network: nn.Module) -> None:
        encodings = shaped_encodings(network)
        self._encodings = [encoding for encoding in encodings if encoding.dims == 2]
        self.rows: list[tuple[float, ...]] = []

    def record(self, *, step: int, epoch: int) -> None:
        """Adds the present centres and sharpness of every head."""
        for layer, encoding in enumerate(self._encodings):
            centres, shapes = encoding.head_centres, encoding.head_shapes
            assert centres is not None
            assert shapes is not None
            exact = shapes.detach().cpu().double()
            precisions = (exact.mT @ exact)[:, [0, 0, 1], [0, 1, 1]]
            sharpness = (precisions[:, 0] + precisions[:, 2]) / 4
            places = centres.detach().cpu().double()
            numbers = torch.column_stack([places, sharpness, precisions])
            for head, values in enumerate(numbers.tolist()):
                self.rows.append((step, epoch, layer, head, *values))
