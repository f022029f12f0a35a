"""The memory that a conversion takes beside the network, as its docstring states it."""

import subprocess
import sys

import pytest

MEASURE = """
import resource, torch
from torch import nn
from convattn import network_to_attention

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

network_to_attention(nn.Conv2d(3, 4, 3), images=torch.zeros(1, 3, 8, 8))  # what is loaded at the first call
network = nn.Sequential(*[nn.Conv2d(1024, 1024, 3, padding=1) for _ in range(4)])
size, before = sum(p.nbytes for p in network.parameters()), peak()
_, certificate = network_to_attention(network, images=torch.ones(1, 1024, 4, 4))
assert certificate.passed
print((peak() - before) / size)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the peak is asked of the resource module")
def test_memory_beside_the_network():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5
