"""Comma-separated values: text is text, numbers are numbers."""

import csv
import io

import pytest

from convattn.lab.tables import csv_text


@pytest.mark.parametrize("cell", ["=1+2", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("a","b")'])
def test_no_cell_is_a_formula(cell):
    ((read,),) = csv.reader(io.StringIO(csv_text([[cell]]), newline=""))
    assert read == f"'{cell}"


def test_everything_else_stays():
    assert csv_text([["a=1", -1.5, 1e-300, None, "", 'a,"b"', True]]) == 'a=1,-1.5,1e-300,,,"a,""b""",True\n'
