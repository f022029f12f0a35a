import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.measure import (
    extra_memory,
    in_a_process_of_its_own,
    make_call,
    ratios,
    time_rounds,
)

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
HELD, PEAK = 32, 96


def allocate() -> int | None:
    """Holds and frees known amounts; the measured peak is of the call alone."""
    before = np.ones(HELD * 2**20, dtype=np.uint8)
    np.ones(2 * PEAK * 2**20, dtype=np.uint8)  # a peak of the preparation, which must not count
    extra = extra_memory(lambda: np.ones(PEAK * 2**20, dtype=np.uint8), CPU)
    assert before.all()
    return extra


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_memory_of_a_child_is_what_it_allocated():
    extra = in_a_process_of_its_own(allocate)
    assert abs(extra / 2**20 - PEAK) < 4


def test_memory_of_other_systems_is_unknown(monkeypatch):
    monkeypatch.setattr(sys, "platform", "plan9")
    assert extra_memory(lambda: None, CPU) is None


def test_child_that_is_killed_is_told():
    with pytest.raises(MemoryError, match="the process was killed"):
        in_a_process_of_its_own(be_killed)


WITHOUT_TORCH = """
class Tensor: pass
class nn:
    class Module: pass
device = str
"""


def test_a_function_of_the_program_itself_is_found(tmp_path):
    (tmp_path / "torch.py").write_text(WITHOUT_TORCH, encoding="utf-8")
    package = tmp_path / "asked"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "from benchmarks.measure import in_a_process_of_its_own\n"
        "def double(number):\n    return 2 * number\n"
        "if __name__ == '__main__':\n    print(in_a_process_of_its_own(double, 21))\n",
        encoding="utf-8",
    )
    for program in (["-m", "asked"], [str(package / "__main__.py")]):
        paths = os.pathsep.join([str(tmp_path), str(ROOT)])
        done = subprocess.run(
            [sys.executable, *program],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "42\n", done.stderr


def test_ratios_are_of_the_same_round_and_times_are_those_of_the_clock():
    ticks = iter(range(100))
    seconds = time_rounds({"a": list, "b": list}, rounds=2, clock=lambda: next(ticks))
    assert seconds == {"a": (1, 1), "b": (1, 1)}
    divided = ratios({"base": (1.0, 2.0), "a": (3.0, 4.0)}, "base")
    assert divided == {"base": [1.0, 1.0], "a": [3.0, 2.0]}


def test_calls_take_turns_and_each_begins_in_its_round():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = time_rounds(calls, rounds=2, device=CPU)
    assert "".join(order) == "abcbcacab"  # the first round is not timed
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_time_is_that_of_the_call_and_the_collector_comes_back():
    seen = []

    def sleep():
        seen.append(gc.isenabled())
        time.sleep(0.02)

    assert gc.isenabled()
    assert min(time_rounds({"sleep": sleep}, rounds=3, device=CPU)["sleep"]) >= 0.02
    assert gc.isenabled()
    assert not any(seen)


def test_nothing_to_time_is_no_error():
    assert time_rounds({}, rounds=3, device=CPU) == {}


def test_training_call_leaves_the_gradients_of_one_pass():
    conv, x = nn.Conv2d(3, 3, kernel_size=1), torch.randn(2, 3, 5, 7)
    call = make_call(conv, x, training=True)
    call()
    once = conv.weight.grad.clone()
    call()
    assert torch.equal(conv.weight.grad, once)


def test_inference_call_makes_no_graph():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.is_grad_enabled())
            return x

    make_call(Spy(), torch.zeros(1), training=False)()
    assert seen == [False]
    assert torch.is_grad_enabled()
