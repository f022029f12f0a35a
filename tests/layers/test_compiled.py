"""Compiled layers compute what layers compute; all cases: `python -m tests.layers.compiled_layers`, hours."""

import subprocess
import sys

import pytest

SELECTED = (
    "quadratic/position/float32/forward",
    "quadratic/position/bfloat16/step",
    "shift/tanh/bfloat16/step",
    "distance/content/bfloat16/step",
)
"""Each reaches code of its own; Inductor once failed on the third."""


@pytest.mark.slow
@pytest.mark.parametrize("case", SELECTED)
def test_a_compiled_layer_is_as_right_as_the_layer(case):
    """In a process of its own: the type checks of the test run would break the graph."""
    command = [sys.executable, "-m", "tests.layers.compiled_layers", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
