import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from convattn.lab import loop as memory
from convattn.lab.loop import peak_memory

CPU = torch.device("cpu")


def test_peak_memory_is_at_least_what_is_held():
    held = torch.ones(10_000_000)
    assert peak_memory(CPU) >= held.numel() * held.element_size()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the peak is inherited")
def test_peak_memory_is_not_that_of_the_program_that_started_this_one():
    held = torch.ones(300_000_000)
    ask = "import torch; from convattn.lab.loop import peak_memory; print(peak_memory(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) < held.nbytes


@pytest.mark.parametrize(
    ("status", "platform", "expected"),
    [
        ("VmPeak:\t  97 kB\nVmHWM:\t   11 kB\nVmRSS:\t  5 kB\n", "linux", 11 * 1024),
        ("VmPeak:\t  97 kB\n", "linux", 7 * 1024),
        (None, "linux", 7 * 1024),
        (None, "darwin", 7),
    ],
    ids=["named by the kernel", "not named", "no file", "macOS counts bytes"],
)
def test_peak_memory_is_in_bytes(monkeypatch, tmp_path, status, platform, expected):
    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(memory, "Path", lambda _: tmp_path / "status")
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform=platform))
    usage = SimpleNamespace(getrusage={"own": SimpleNamespace(ru_maxrss=7)}.get, RUSAGE_SELF="own")
    monkeypatch.setattr(memory, "resource", usage)
    assert peak_memory(CPU) == expected


def test_peak_memory_of_a_gpu_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {torch.device("cuda:3"): 13}.get)
    assert peak_memory(torch.device("cuda:3")) == 13
