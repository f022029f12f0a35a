import sys
from importlib import metadata

import torch

from convattn.__about__ import __version__
from convattn.cli import main
from convattn.cli.info import Installation, _optional_packages, describe_installation
from convattn.encodings import ENCODINGS
from convattn.lab import recipe_names
from convattn.networks.pretrained import pretrained_card, pretrained_names


def test_info_prints_what_is_there(capsys):
    assert main(["info"]) == 0
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
    assert max(map(len, out.splitlines())) < 200


def test_info_names_the_instruction_set_and_its_limits(monkeypatch, capsys):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS", raising=False)
    assert main(["info"]) == 0
    assert (
        f"{torch.backends.cpu.get_cpu_capability()} (ONEDNN_MAX_CPU_ISA=AVX2)\n"
        in capsys.readouterr().out
    )


def test_json_is_the_same(capsys):
    assert main(["info", "--json"]) == 0
    printed = Installation.from_json(capsys.readouterr().out)
    assert printed == describe_installation()
    assert printed.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert printed.memory > 2**28
    assert printed.encodings == tuple(ENCODINGS)
    assert printed.networks == {
        name: pretrained_card(name).summary() for name in pretrained_names()
    }


def test_missing_package_comes_with_its_install_line(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "matplotlib":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = describe_installation()
    line = 'pip install "convattn[train]"'
    assert found.missing["matplotlib"] == line
    assert "matplotlib" not in found.optional
    assert found.optional["scikit-learn"] == real("scikit-learn")
    assert f"missing: {line}" in found.summary()
    assert "ruff" not in {**found.missing, **found.optional}


def test_a_package_of_several_extras_is_named_with_the_smallest(monkeypatch):
    brought = {"sweep": ("monai", "timm"), "timm": ("timm",)}
    lines = [f"{name}; extra == '{extra}'" for extra, names in brought.items() for name in names]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    found = describe_installation()
    assert {**found.optional, **found.missing}.keys() == {"monai", "timm"}
    assert _optional_packages() == {"monai": "sweep", "timm": "timm"}
