"""The benchmark of large kernels: what it holds against float64, what it times, what its page says."""

import re
import sys

import pytest
import torch

from benchmarks import large_kernels
from benchmarks.large_kernels import (
    Case,
    channels_last,
    grid,
    measure,
    network_memory,
    page,
    tables,
)

CASES = [Case(1, 4, 4, (11, 13), 5), Case(2, 4, 1, (31,), 9), Case(1, 4, 2, (5, 6, 7), 3)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_contenders_compute_the_case(case):
    rows = list(measure(case, 1))
    assert [row["training"] for row in rows] == [False, True]
    for row in rows:
        assert {"planned", "default", "channels-last"} <= set(row["seconds"])
        assert not row["wrong"]
    plain, own = case.layers()
    x = torch.randn(case.batch, case.channels, *case.image)
    assert channels_last(plain, x).stride() == plain(x).stride()
    assert own.weight is plain.weight


def test_a_wrong_contender_gets_no_time(monkeypatch):
    monkeypatch.setattr(large_kernels, "channels_last", lambda conv, x: conv(x) + 1)
    for row in measure(CASES[0], 1):
        assert set(row["wrong"]) == {"channels-last"}
        assert "channels-last" not in row["seconds"]


def test_the_page_has_a_row_for_each_measurement():
    seconds = {"planned": 0.002, "default": 0.004, "channels-last": 0.001}
    row = {"name": CASES[0].name, "training": False, "paths": ["fft"] * 3, "seconds": seconds}
    record = {
        "cases": [row, {**row, "training": True}],
        "networks": [],
        "rounds": 1,
        "note": "",
        "revision": "a",
    }
    record |= {"hardware": {"processor": "P", "threads": "1"}, "instructions": "AVX2"}
    network = {
        "name": "N",
        "training": True,
        "verdict": "exact",
        "seconds": seconds,
        "bytes": {"planned": 3_000_000},
    }
    record["networks"] = [network]
    text = page(record, [])
    assert "In 0 of 2 rows the planned layer is at most 5 % slower" in text
    assert "loses at most 1 ms" in text
    assert "| N | training | 2 / 4 / 1 | 3 / – / – | exact |" in text
    assert re.search(r"\| forward \| fft \| 2 \| 2 \| 4 \| 1 \| – \|", tables(record, []))
    assert len({case.name for case in grid()}) == len(grid())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_the_memory_of_a_network_holds_its_output(monkeypatch):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1))
    monkeypatch.setattr(
        large_kernels, "networks", lambda: [("small", network, torch.zeros(3, 3, 256, 256))]
    )
    assert network_memory(0, "default", False, 1) >= 3 * 64 * 256 * 256 * 4
