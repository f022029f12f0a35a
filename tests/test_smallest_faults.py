"""tests/smallest_faults.py says how small a fault is found."""

import math

import pytest
from tests.smallest_faults import FAULTS, SIZES, Planted, smallest, table


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.path}: {fault.what}")
def test_a_large_fault_is_found_and_a_right_result_is_not(fault):
    assert fault.found(0, SIZES[-1])
    assert not fault.found(0, 0.0)


def test_table_holds_the_smallest_of_each_fault():
    fault, nothing = (
        FAULTS[0],
        Planted("reference", "nothing", FAULTS[0].case, FAULTS[0].place, lambda _: lambda x: x),
    )
    sizes = [smallest(fault, seed) for seed in range(2)]
    assert set(sizes) < set(SIZES)
    assert smallest(nothing, 0) == math.inf
    assert f"| reference | softmax leaks | {max(sizes):.1e} | {max(sizes):.1e} | 0 |" in table(
        2, [fault]
    )
