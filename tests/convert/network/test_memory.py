"""The memory that a conversion takes beside the network, as its docstring states it."""

import subprocess
import sys

import pytest

MEASURE = """
import torch
from torch import nn
from convattn import network_to_attention
from benchmarks.measure import extra_memory

network_to_attention(nn.Conv2d(3, 4, 3), images=torch.zeros(1, 3, 8, 8))  # what is loaded at the first call
network = nn.Sequential(*[nn.Conv2d(1024, 1024, 3, padding=1) for _ in range(4)])
images = torch.ones(1, 1024, 4, 4)

def convert():
    assert network_to_attention(network, images=images)[1].passed

print(extra_memory(convert, torch.device("cpu")) / sum(parameter.nbytes for parameter in network.parameters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_memory_beside_the_network():
    """In a process of its own; a conversion that takes no copy of the network is not measured at all."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    assert 1 < float(done.stdout) < 5
