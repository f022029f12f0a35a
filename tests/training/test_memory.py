import subprocess
import sys

import pytest
import torch

from convattn.training.memory import peak_memory

CPU = torch.device("cpu")


def test_peak_memory_is_at_least_what_is_held():
    held = torch.ones(10_000_000)
    assert peak_memory(CPU) >= held.numel() * held.element_size()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the peak is inherited")
def test_peak_memory_is_not_that_of_the_program_that_started_this_one():
    held = torch.ones(300_000_000)
    ask = "import torch; from convattn.training.memory import peak_memory; print(peak_memory(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) < held.nbytes
