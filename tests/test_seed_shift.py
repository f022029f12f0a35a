"""A shift of the seeds reaches every source of random numbers that the tests use."""

import subprocess
import sys
from pathlib import Path

DRAWS = """
import numpy as np, torch
from hypothesis import given, settings, strategies
from tests.seed_shift import shift_seeds

settings.register_profile("repeatable", derandomize=True, database=None)
settings.load_profile("repeatable")
for shift in (0, 1000, 0, 1000):
    shift_seeds(shift)
    settings.load_profile("shifted" if shift else "repeatable")
    drawn = []
    given(strategies.integers(0, 2**60))(lambda number: drawn.append(number))()
    torch.manual_seed(3)
    print(torch.rand(1).item(), torch.rand(1, generator=torch.Generator().manual_seed(5)).item(),
          np.random.default_rng(7).random(), hash(tuple(drawn)))
"""


def test_a_shift_changes_every_source_and_repeats_itself():
    command = [sys.executable, "-c", DRAWS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    plain, shifted, *again = [line.split() for line in done.stdout.splitlines()]
    assert len(plain) == 4
    assert all(one != other for one, other in zip(plain, shifted, strict=True))
    assert again == [plain, shifted]
