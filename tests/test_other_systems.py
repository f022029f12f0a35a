"""Layers import, convert and save on systems that have none of the calls of Linux."""

import subprocess
import sys

PROGRAM = """
import os, sys, warnings

warnings.simplefilter("ignore")  # of filelock, which has no lock of the system then
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import torch

for name in ("O_DIRECTORY", "O_NOFOLLOW", "fchmod", "fork", "getuid", "killpg", "sched_getaffinity", "uname"):
    if hasattr(os, name):
        delattr(os, name)
import ctypes

ctypes.CDLL = None

import convattn
from convattn.files import sole_use
from convattn.models import ConvNet
from pathlib import Path

layer, certificate = convattn.conv_to_attention(torch.nn.Conv2d(3, 5, 3))
for _ in range(2):
    convattn.save_network(layer, "layer", certificate=certificate, overwrite=True)
assert torch.equal(convattn.load_network("layer").values.weight, layer.values.weight)
network = ConvNet(width=8, depth=1, ffn=8).eval()
images = torch.randn(1, 3, 8, 8)
attention, certificate = convattn.network_to_attention(network, images=images)
for _ in range(2):
    convattn.save_network(attention, "network", certificate=certificate, overwrite=True)
assert torch.equal(convattn.load_network("network")(images), attention(images))
with sole_use(Path("network")):
    pass
assert sorted(os.listdir()) == ["layer", "network"]
"""


def test_without_calls_of_linux_networks_are_converted_saved_and_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
