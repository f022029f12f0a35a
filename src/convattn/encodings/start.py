"""Counts the keys that heads attend to at the start, and gives flatter encodings the start of a table."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.distance import AxialDistance, Distance
from convattn.encodings.encoding import Encoding
from convattn.encodings.learned_axial import LearnedAxial
from convattn.encodings.learned_table import LearnedTable
from convattn.encodings.sinusoidal import Sinusoidal
from convattn.errors import require
from convattn.grid import Axis

_FLATTER = AxialDistance | Distance | LearnedTable | Sinusoidal
"""Encodings whose heads attend to more keys at the start than those of `LearnedAxial`."""

_HALVINGS = 50
"""Halvings of the interval of factors: past the digits of float64."""


def attended_keys(encoding: Encoding, size: int) -> float:
    """Returns to how many keys the heads attend: the exponential of the mean entropy of their attention.

    The mean is over heads and over all queries of an image with `size` pixels along each axis, without padding.

    Example:
        >>> flat = Sinusoidal(4, 2)
        >>> _ = torch.nn.init.zeros_(flat.head_vectors)
        >>> round(attended_keys(flat, 7), 9)
        49.0
    """
    return _keys(_scores(encoding, size))


@torch.no_grad()
def start_like_table(encoding: Encoding, *, size: int, width: int) -> None:
    """Draws an encoding anew so that its heads attend to as many keys as those of a new `LearnedAxial`.

    Linear maps are drawn as PyTorch draws them. One factor for all heads then multiplies the weights in which scores
    are linear, so that their shape is the encoding's own. The table is drawn for this, with vectors of the given width.
    Raises ArgumentError unless the encoding starts flatter than a table.
    """
    expected = f'"network" with {type(encoding).__name__}'
    require(isinstance(encoding, _FLATTER), "position_start", expected, "table")
    if next(encoding.parameters()).is_meta:
        return
    for module in encoding.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    table = LearnedAxial(encoding.num_heads, encoding.dims, extent=size, width=width)
    keys = attended_keys(table, size)
    scores = _scores(encoding, size)
    low = 0.0
    high = 1.0
    while _keys(high * scores) > keys:
        low = high
        high = 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _keys(middle * scores) > keys:
            low = middle
        else:
            high = middle
    for name, weight in encoding.named_parameters():
        if name.endswith(("outer.weight", "head_vectors", "scores")):
            weight.mul_(high)


@torch.no_grad()
def _scores(encoding: Encoding, size: int) -> Float[Tensor, "heads queries keys"]:
    """Scores every query and key of an image, in float64."""
    axis = Axis(range(size), size)
    windows = encoding.table([axis] * encoding.dims, torch.float64)
    for number in range(encoding.dims):
        # each query's displacements, from the last query to the first
        windows = windows.unfold(1 + number, size, 1)
    return windows.flatten(1 + encoding.dims).flatten(1, -2)


def _keys(scores: Float[Tensor, "heads queries keys"]) -> float:
    logs = scores.log_softmax(dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1)
    return math.exp(entropy.mean().item())
