"""`convattn demo`: what a user would do first."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.command import run
from tests.cli.page_scene import scene_of

from convattn import convert, load_network
from convattn.convert.certificate import NetworkCertificate
from convattn.heads.head_report import HeadReport
from convattn.networks import images as own_images


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Two images in place of twenty."""
    honest = own_images.require_own_images
    monkeypatch.setattr(
        own_images,
        "require_own_images",
        lambda loaded, name, count: honest(loaded, name, count // 10),
    )


def test_the_network_is_converted_measured_and_shown(place, quick, opened, capsys):
    Path("demo").mkdir()
    Path("demo/mine").write_text("precious")
    assert run("demo") == 0
    folder = place / "demo-2"
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "network      convattn:cifar10-small: attention with 58 heads, trained on CIFAR-10\n"
        "converted    exact: 0 of 2 predictions changed\n"
        "measured     58 of 58 heads are convolutions: the architecture does it, on 2 images\n"
        "wrote        demo-2: the convolutions with their certificate, report.json, page.html\n"
        "next         convattn view convattn:cifar10-small --compare converted\n"
    )
    assert opened == [(folder / "page.html").as_uri()]
    assert load_network(folder / "convolutions")
    certificate = NetworkCertificate.load(folder / "convolutions/certificate.json")
    assert certificate.verdict == "exact"
    assert len(HeadReport.load(folder / "report.json").layers) == 7
    trained, untrained = scene_of(folder / "page.html").header["networks"]
    assert trained["layers"][0]["sentence"]
    assert untrained["name"] == "untrained"
    assert Path("demo/mine").read_text() == "precious"


@pytest.fixture
def failing(monkeypatch):
    """A conversion that fails."""
    honest = convert.network_to_conv

    def fail(*arguments, **options):
        converted, certificate = honest(*arguments, **options)
        return converted, replace(certificate, verdict="failed")

    monkeypatch.setattr(convert, "network_to_conv", fail)


@pytest.mark.slow
def test_a_conversion_that_failed_is_the_exit_code(failing, quick, capsys):
    assert run("demo -o there") == 1
    assert "converted    failed: 0 of 2 " in capsys.readouterr().out


def test_a_demo_that_is_interrupted_leaves_nothing(place, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "network_to_conv", stop)
    assert run("demo") == 130
    assert not list(place.iterdir())
    assert capsys.readouterr() == ("", "convattn: interrupted\n")


def test_a_missing_package_is_named_before_anything_is_made(place, monkeypatch, capsys):
    for module in ("pyarrow", "PIL"):
        monkeypatch.setitem(sys.modules, module, None)
    lacking = {
        "demo": "pillow, pyarrow, which are",
        "view convattn:cifar10-small": "pillow, which is",
    }
    for command, packages in lacking.items():
        assert run(command) == 2
        assert capsys.readouterr().err == (
            f'convattn: this needs {packages} not installed; run: pip install "convattn[view]"\n'
        )
    assert not list(place.iterdir())
