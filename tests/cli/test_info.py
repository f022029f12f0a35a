import sys

import torch
from tests.cli.command import run

from convattn.__about__ import __version__
from convattn.cli.info import Installation, describe_installation
from convattn.encodings import ENCODINGS
from convattn.lab import recipe_names
from convattn.networks.pretrained import pretrained_names


def test_info_prints_what_is_there(capsys):
    assert run("info") == 0
    out = capsys.readouterr().out
    for word in (
        __version__,
        torch.__version__,
        f"{torch.get_num_threads()}",
        *ENCODINGS,
        *recipe_names(),
        *pretrained_names(),
    ):
        assert word in out


def test_info_names_the_instruction_set_and_its_limits(monkeypatch, capsys):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS", raising=False)
    assert run("info") == 0
    assert (
        f"{torch.backends.cpu.get_cpu_capability()} (ONEDNN_MAX_CPU_ISA=AVX2)\n"
        in capsys.readouterr().out
    )


def test_json_is_the_same(capsys):
    assert run("info --json") == 0
    printed = Installation.from_json(capsys.readouterr().out)
    assert printed == describe_installation()
    assert printed.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert printed.encodings == tuple(ENCODINGS)
    assert [*printed.networks] == [f"convattn:{name}" for name in pretrained_names()]
