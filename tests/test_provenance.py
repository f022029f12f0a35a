import subprocess

import torch

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
