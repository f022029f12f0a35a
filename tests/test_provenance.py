import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from tests.machine import do_without

from convattn import provenance
from convattn.provenance import describe_hardware, describe_versions, find_revision

CPU = torch.device("cpu")


def test_hardware_and_versions_are_named():
    hardware = describe_hardware(CPU)
    assert hardware["device"] == "cpu"
    assert all(hardware.values())
    assert describe_versions()["torch"] == torch.__version__.split("+")[0]


def test_versions_are_of_the_packages_that_are_installed():
    versions = describe_versions(("torch", "no-such-package"))
    assert set(versions) == {"convattn", "python", "torch"}


def run_git(folder, *arguments):
    if not shutil.which("git"):
        do_without("there is no git")
    identity = ["-c", "user.name=name", "-c", "user.email=mail"]
    return subprocess.run(
        ["git", *identity, "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_revision_is_that_of_the_checkout_and_says_when_files_differ(tmp_path):
    run_git(tmp_path, "init")
    (tmp_path / "source.py").write_text("first")
    assert find_revision(tmp_path) is None
    run_git(tmp_path, "add", "source.py")
    run_git(tmp_path, "commit", "-m", "first")
    commit = run_git(tmp_path, "rev-parse", "HEAD").strip()
    assert find_revision(tmp_path) == commit
    (tmp_path / "source.py").write_text("second")
    assert find_revision(tmp_path) == f"{commit}-dirty"


def test_folder_that_its_checkout_does_not_track_has_no_revision(tmp_path):
    run_git(tmp_path, "init")
    (tmp_path / "source.py").write_text("first")
    run_git(tmp_path, "add", "source.py")
    run_git(tmp_path, "commit", "-m", "first")
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "package.py").write_text("code")
    assert find_revision(installed) is None


def test_without_git_there_is_no_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_revision() is None


def test_tiles_of_the_processor_are_named(monkeypatch, tmp_path):
    capability = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(provenance, "Path", lambda _: tmp_path / "cpuinfo")
    for flags, words in (("fpu amx_bf16 amx_tile", " and AMX"), ("fpu avx512f", "")):
        (tmp_path / "cpuinfo").write_text(f"model name\t: Abacus\nflags\t\t: {flags}\n")
        assert provenance.describe_instructions().startswith(f"{capability}{words}")
        assert ("AMX" in provenance.describe_instructions()) == bool(words)


@pytest.mark.parametrize(
    ("information", "named", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: Abacus: 7 beads\nmodel name\t: other\n",
            "x86",
            "Abacus: 7 beads",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "arm", "arm"),
        (None, "arm", "arm"),
        (None, "", "aarch64"),
    ],
    ids=["by Linux", "not by Linux", "elsewhere", "by its instructions"],
)
def test_processor_is_named(monkeypatch, tmp_path, information, named, expected):
    if information is not None:
        (tmp_path / "cpuinfo").write_text(information)
    monkeypatch.setattr(provenance, "Path", lambda _: tmp_path / "cpuinfo")
    platform = SimpleNamespace(
        processor=lambda: named, machine=lambda: "aarch64", platform=lambda: "Board 3"
    )
    monkeypatch.setattr(provenance, "platform", platform)
    hardware = describe_hardware(CPU)
    assert (hardware["processor"], hardware["system"]) == (expected, "Board 3")
    assert "accelerator" not in hardware


def test_gpu_is_named_with_its_memory(monkeypatch):
    properties = {
        torch.device("cuda:1"): SimpleNamespace(name="Loom", total_memory=24 * 2**30 - 2**29)
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.get)
    hardware = describe_hardware(torch.device("cuda:1"))
    assert [hardware[key] for key in ("device", "accelerator", "accelerator_memory")] == [
        "cuda",
        "Loom",
        "23.5 GiB",
    ]
