"""Relative positional encodings: each is a function from a displacement to one score per head."""

from convattn.encodings.distance import AxialDistance, Distance
from convattn.encodings.encoding import AxisAdditiveEncoding, Encoding
from convattn.encodings.fixed_shift import Shift
from convattn.encodings.generalized_quadratic import GeneralizedQuadratic
from convattn.encodings.learned_axial import LearnedAxial
from convattn.encodings.learned_table import LearnedTable
from convattn.encodings.linear_distance import LinearDistance
from convattn.encodings.quadratic import Quadratic, off_centre_mass
from convattn.encodings.registry import (
    ENCODINGS,
    create_encoding,
    describe_encoding,
    register_encoding,
)
from convattn.encodings.score_function import ScoreFunction
from convattn.encodings.sinusoidal import Sinusoidal

__all__ = [
    "ENCODINGS",
    "AxialDistance",
    "AxisAdditiveEncoding",
    "Distance",
    "Encoding",
    "GeneralizedQuadratic",
    "LearnedAxial",
    "LearnedTable",
    "LinearDistance",
    "Quadratic",
    "ScoreFunction",
    "Shift",
    "Sinusoidal",
    "create_encoding",
    "describe_encoding",
    "off_centre_mass",
    "register_encoding",
]
