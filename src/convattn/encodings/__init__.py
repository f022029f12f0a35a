"""Relative positional encodings: each is a function from a displacement to one score per head."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from convattn.encodings.distance import Distance
from convattn.encodings.encoding import AxisAdditiveEncoding, Encoding
from convattn.encodings.generalized_quadratic import GeneralizedQuadratic
from convattn.encodings.learned_axial import LearnedAxial
from convattn.encodings.learned_table import LearnedTable
from convattn.encodings.linear_distance import LinearDistance
from convattn.encodings.quadratic import Quadratic
from convattn.encodings.shift import Shift
from convattn.encodings.sinusoidal import Sinusoidal
from convattn.errors import ArgumentError, UnknownNameError, must_be

__all__ = [
    "ENCODINGS",
    "AxisAdditiveEncoding",
    "Distance",
    "Encoding",
    "GeneralizedQuadratic",
    "LearnedAxial",
    "LearnedTable",
    "LinearDistance",
    "Quadratic",
    "Shift",
    "Sinusoidal",
    "create_encoding",
]

ENCODINGS: Mapping[str, type[Encoding]] = MappingProxyType(
    {
        "quadratic": Quadratic,
        "generalized_quadratic": GeneralizedQuadratic,
        "learned_axial": LearnedAxial,
        "learned_table": LearnedTable,
        "sinusoidal": Sinusoidal,
        "distance": Distance,
        "linear_distance": LinearDistance,
        "shift": Shift,
    }
)
"""Every encoding by its name."""


def create_encoding(name: str, num_heads: int, dims: int, **options: Any) -> Encoding:
    """Builds an encoding by its name.

    Args:
        name: A key of `ENCODINGS`.
        num_heads: Number of heads, ≥ 1.
        dims: Number of axes of the grid, ≥ 1.
        **options: Further arguments of that encoding.

    Returns:
        The encoding, freshly initialised.

    Raises:
        UnknownNameError: There is no encoding of that name.
        ArgumentError: The encoding does not take one of the options.

    Example:
        >>> create_encoding("distance", num_heads=9, dims=2, hidden=32)
        Distance(num_heads=9, dims=2, hidden=32)
    """
    if name not in ENCODINGS:
        raise UnknownNameError("encoding", name, ENCODINGS)
    kind = ENCODINGS[name]
    known = sorted(set(kind.__init__.__annotations__) - {"num_heads", "dims", "return"})
    for option in options:
        if option not in known:
            raise ArgumentError(must_be(f"option of encoding {name!r}", f"one of {known}", option))
    return kind(num_heads, dims, **options)
