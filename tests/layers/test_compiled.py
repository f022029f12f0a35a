"""Compiled layers compute what layers compute; all cases: `python -m tests.layers.compiled_layers`, hours."""

import subprocess
import sys

import pytest

SLOW = (
    "quadratic/position/float32/forward",
    "quadratic/position/bfloat16/step",
    "distance/content/bfloat16/step",
)
SELECTED = (
    "shift/tanh/bfloat16/step",
    *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW),
)
"""Each reaches code of its own; twice the first could not be compiled."""


@pytest.mark.parametrize("case", SELECTED)
def test_a_compiled_layer_is_as_right_as_the_layer(case):
    """In a process of its own: the type checks of the test run would break the graph."""
    command = [sys.executable, "-m", "tests.layers.compiled_layers", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
