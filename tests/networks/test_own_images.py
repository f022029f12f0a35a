"""Images for networks whose user gave none, and pictures for networks that were trained on digits."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.command import run

from convattn import save_network
from convattn.convert.certificate import NetworkCertificate
from convattn.data import load_digits, normalise
from convattn.errors import ArgumentError, MissingDependencyError
from convattn.heads import analyze
from convattn.heads.head_report import HeadReport
from convattn.models import AttentionNet
from convattn.networks import images as own_module
from convattn.networks import load_network
from convattn.networks.images import class_names, normalisation, preparation, require_own_images
from convattn.networks.loading import LoadedNetwork, load_with_source
from convattn.viewer.exhibition import gather


@pytest.fixture
def digits_run(tmp_path):
    """The folder of a network that was trained on digits, as far as anybody can see."""
    torch.manual_seed(0)
    network = AttentionNet(
        "quadratic", width=8, depth=1, heads=4, ffn=8, patch=2, in_channels=1, image_size=8
    )
    save_network(network, tmp_path / "run")
    (tmp_path / "run" / "record.json").write_text(json.dumps({"data": {"name": "digits"}}))
    return tmp_path / "run"


def test_a_network_trained_on_digits_is_shown_on_digits(digits_run):
    digits, shown = load_digits(), gather(str(digits_run), compare=["untrained"])
    assert torch.equal(
        shown.exhibits[0].images, normalise(digits.test.images[:20], digits.mean, digits.std)
    )
    assert shown.names[19] == "test image 19"
    assert shown.labels == tuple(str(int(label)) for label in digits.test.labels[:20])
    assert shown.exhibits[0].classes == tuple("0123456789")
    assert (shown.exhibits[0].mean, shown.exhibits[0].std) == (digits.mean, digits.std)


def test_networks_of_other_data_are_not_shown_on_the_images_of_one(digits_run):
    with pytest.raises(
        ArgumentError, match="nothing says that cifar10-small and run were trained on the same data"
    ):
        gather(str(digits_run), compare=["convattn:cifar10-small"])


def test_a_network_is_analysed_without_images_of_ones_own(digits_run, tmp_path):
    out, digits = tmp_path / "report", load_digits()
    assert run(f"analyze {digits_run} --no-controls --limit 30 -o {out}") == 0
    prepared = normalise(digits.test.images[:30], digits.mean, digits.std)
    assert HeadReport.load(out / "report.json") == analyze(
        load_network(digits_run), prepared, controls=(), progress=False
    )
    page = " ".join((out / "index.html").read_text(encoding="utf-8").split())
    assert "the test set of digits" in page


def test_conversions_are_measured_on_test_images_unless_a_shape_is_asked_for(digits_run, tmp_path):
    wanted = {
        "": "16 images of the test set of digits",
        "--limit 3": "3 images of the test set of digits",
        "--shape 1,8,8": "one standard normal image (1, 1, 8, 8), seed 0",
    }
    for options, words in wanted.items():
        out = tmp_path / f"conv{options}"
        line = f"convert {digits_run} --to conv -o '{out}' --allow-difference {options}"
        assert run(line) in (0, 3)
        assert NetworkCertificate.load(out / "certificate.json").images == words


def test_what_nobody_knows_needs_images(tmp_path, capsys):
    save_network(AttentionNet(width=8, depth=1, heads=4, ffn=8), tmp_path / "mine")
    assert run(f"analyze {tmp_path}/mine -o {tmp_path}/report") == 2
    message = f"--images must be given: {tmp_path / 'mine'} is not known to be trained on CIFAR-10 or digits"
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "report").exists()


def test_networks_of_other_libraries_need_images_before_weights_are_fetched(tmp_path, capsys):
    for command in ("analyze", "view"):
        assert run(f"{command} timm:no-such-network --pretrained -o {tmp_path}/out") == 2
        assert "--images must be given for timm:no-such-network" in capsys.readouterr().err


def test_images_of_cifar10_are_of_as_many_classes_as_the_limit_lets():
    loaded = load_with_source("convattn:cifar10-small")
    own = require_own_images(loaded, "it", 12)
    assert own.labels == tuple(sorted(own.labels, key=list(class_names(loaded.folder)).index))
    assert sorted(Counter(own.labels).values()) == [1] * 8 + [2] * 2
    own = require_own_images(loaded, "it", 100)
    assert len(own.prepared) == len(own.names) == len(own.labels) == 20
    assert own.what == "the test set of CIFAR-10"
    assert class_names(None) == ()


@pytest.mark.parametrize("size", [8, 50])
def test_pictures_for_a_network_of_digits_are_made_grey_and_small(digits_run, size):
    noise = np.random.default_rng(0).integers(256, size=(size, size, 3), dtype=np.uint8)
    loaded = LoadedNetwork(AttentionNet(in_channels=1), None, {}, digits_run)
    made = preparation(loaded)(Image.fromarray(noise))
    grey = Image.fromarray(noise).convert("L").resize((8, 8), Image.Resampling.BICUBIC)
    digits = load_digits()
    assert torch.equal(
        made, normalise(torch.from_numpy(np.array(grey))[None, None], digits.mean, digits.std)[0]
    )


@pytest.fixture
def no_scikit_learn(monkeypatch):
    def missing():
        raise MissingDependencyError("scikit-learn", "train")

    monkeypatch.setattr(own_module, "load_digits", missing)


def test_without_scikit_learn_images_of_ones_own_are_shown(digits_run, tmp_path, no_scikit_learn):
    loaded = LoadedNetwork(AttentionNet(in_channels=1), None, {}, digits_run)
    assert normalisation(loaded) is None
    np.save(tmp_path / "images.npy", np.zeros((2, 1, 8, 8), np.float32))
    shown = gather(str(digits_run), tmp_path / "images.npy")
    assert shown.exhibits[0].mean == ()


def test_without_scikit_learn_a_network_of_digits_is_converted(
    digits_run, tmp_path, no_scikit_learn
):
    assert run(f"convert {digits_run} --to conv -o {tmp_path}/conv --allow-difference") == 3
    words = NetworkCertificate.load(tmp_path / "conv" / "certificate.json").images
    assert words.startswith(
        "one standard normal image (1, 1, 8, 8), seed 0, in place of test images: this needs scikit-learn"
    )


def test_a_mean_is_refused_where_it_would_have_no_effect(digits_run, tmp_path, capsys):
    np.save(tmp_path / "numbers.npy", np.zeros((2, 1, 8, 8), np.float32))
    colours = "--mean 0.5 --std 0.5"
    for command, words in {
        f"analyze {digits_run} -o {tmp_path}/a {colours}": "the test set of digits comes with its own",
        f"view {digits_run} -o {tmp_path}/b.html {colours}": "the test set of digits comes with its own",
        f"analyze {digits_run} -o {tmp_path}/c --images {tmp_path}/numbers.npy {colours}": "numbers.npy holds what the",
        f"convert {digits_run} -o {tmp_path}/d --to conv --shape 1,8,8 {colours}": "random numbers are none",
    }.items():
        assert run(command) == 2, command
        told = " ".join(capsys.readouterr().err.split())
        assert "--mean and --std are for pictures, but" in told
        assert words in told
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in "abcd") == []
