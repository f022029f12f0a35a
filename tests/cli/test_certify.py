"""`convattn certify`: a network against a file or a folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from tests.cli.command import run
from torch import nn

from convattn import AttentionNet, load_network, save_network
from convattn.convert.foreign_check import AgreementCertificate

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
RANDOM = "--shape 3,32,32"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with `network`, which is a network, with `changed`, where one weight is another, and ONNX files."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(3)
    network = AttentionNet(width=8, depth=2, heads=9, ffn=16).eval()
    images = (torch.zeros(1, 3, 32, 32),)
    for name in ("network", "changed"):
        save_network(network, folder / name)
        torch.onnx.export(network, images, folder / f"{name}.onnx", dynamo=True, verbose=False)
        with torch.no_grad():
            next(module for module in network.modules() if isinstance(module, nn.Linear)).weight[
                0, 0
            ] += 1
    return folder


@pytest.fixture
def network(made, place):
    """Puts what `made` holds into the working folder."""
    shutil.copytree(made, place, dirs_exist_ok=True)


def test_the_exit_code_is_that_of_the_verdict(network, capsys):
    for runtime in ("onnxruntime", "openvino"):
        assert run(f"certify network network.onnx --runtime {runtime} {RANDOM}") == 0
        printed = capsys.readouterr().out
        assert printed.startswith("certify: exact\n  network.onnx in O")
        assert ", on one standard normal image (1, 3, 32, 32), seed 0." in printed
    assert run(f"certify network changed.onnx --json {RANDOM}") == 3
    certificate = AgreementCertificate.from_json(capsys.readouterr().out)
    assert (certificate.verdict, certificate.tolerance) == ("different", None)
    assert certificate.first is not None


def test_what_is_not_there_is_named(capsys):
    assert run("certify convattn:cifar10-small nothing.onnx") == 2
    assert "there is no file or folder 'nothing.onnx' to compare" in capsys.readouterr().err


def test_two_folders_are_compared(network, capsys):
    assert run(f"certify network network {RANDOM}") == 0
    assert capsys.readouterr().out.startswith(
        "certify: exact\n  The other AttentionNet computes what the first computes, up to rounding."
    )
    assert run(f"certify network changed {RANDOM}") == 3


def test_options_reach_the_runtime(network, capsys):
    arguments = f"certify network network.onnx --runtime openvino {RANDOM}"
    assert (
        run(f"{arguments} --option INFERENCE_PRECISION_HINT=f32 --option INFERENCE_NUM_THREADS=1")
        == 0
    )
    assert "(f32)" in capsys.readouterr().out
    assert run(f"{arguments} --option NO_SUCH_PROPERTY=1") == 2
    assert "unknown option of OpenVINO 'NO_SUCH_PROPERTY'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--tolerance 2",
            "--tolerance must be a share in (0, 1), without --exact, but is 2.0",
        ),
        ("--tolerance 0.1 --exact", "without --exact"),
        (
            "--tolerance 0.1",
            "--tolerance needs images: nothing is called close on random numbers",
        ),
        ("--option nothing", "--option must be of the form KEY=VALUE, but is 'nothing'"),
        ("--runtime tensorrt", "tensorrt"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, place, capsys):
    (place / "any.onnx").write_bytes(b"")
    assert run(f"certify timm:resnet10t any.onnx --random-weights {arguments} {RANDOM}") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_runtime_is_for_a_file(place, capsys):
    (place / "folder").mkdir()
    assert run(f"certify timm:resnet10t folder --random-weights --runtime openvino {RANDOM}") == 2
    assert "--runtime and --option are for files, but folder is" in capsys.readouterr().err


def test_nothing_is_close_where_only_exact_counts(network, capsys):
    np.save("images.npy", torch.randn(5, 3, 32, 32).numpy())
    with torch.no_grad():
        close = load_network("network")
        next(part for part in close.modules() if isinstance(part, nn.Linear)).bias += 1e-5
    save_network(close, "close")
    assert run("certify network close --images images.npy --json") == 0
    certificate = json.loads(capsys.readouterr().out)
    assert (certificate["verdict"], certificate["decisions"], certificate["images"]) == (
        "close",
        5,
        "5 images of images.npy",
    )
    assert run("certify network close --images images.npy --exact") == 3
