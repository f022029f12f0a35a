import math

from convattn.heads.head_report import Estimate, LayerStatistics


def test_the_mean_over_no_head_is_not_known():
    number = Estimate(0.5, 0.25)
    layer = LayerStatistics(7, (), number)
    assert math.isnan(layer.mean("distance"))
