import math

import pytest

from convattn.errors import UnknownNameError
from convattn.heads.head_report import Estimate, LayerStatistics


def test_a_number_that_heads_do_not_have_is_named():
    number = Estimate(0.5, 0.25)
    layer = LayerStatistics(7, (), number, number, number, 3, (5, 2))
    assert layer.estimate("distance") == ()
    assert math.isnan(layer.mean("distance"))
    with pytest.raises(
        UnknownNameError, match="unknown number of a head 'distanz': did you mean 'distance'"
    ):
        layer.estimate("distanz")
