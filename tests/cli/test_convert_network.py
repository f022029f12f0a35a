"""`convattn convert` on whole networks: of timm, of torchvision, and of folders."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from convattn import convert, load_network, save_network
from convattn.cli import main
from convattn.cli.network_options import read_value
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, normalise
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet, ResNet
from convattn.networks.pretrained import pretrained_names

SHAPE = ["--shape", "3,32,32"]
STEM = ["--include", "conv1.*"]
TINY = ["--set", "num_classes=3"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_borders_are_exact_on_request(capsys):
    torch.manual_seed(0)
    save_network(AttentionNet("quadratic", width=8, depth=1, heads=4, ffn=8), "small")
    command = ["convert", "small", "--to", "conv", "--borders", "exact", "--shape", "3,16,16"]
    assert main([*command, "-o", "made"]) == 0
    assert "1 normalised convolution" in capsys.readouterr().out
    assert NetworkCertificate.load("made/certificate.json").verdict == "exact"


@pytest.fixture
def weights():
    """A network of timm, and files with its weights."""
    torch.manual_seed(5)
    network = timm.create_model("resnet10t", num_classes=3).eval()
    torch.save(network.state_dict(), "weights.pth")
    save_file(network.state_dict(), "weights.safetensors")
    return network


@pytest.mark.parametrize("file", ["weights.pth", "weights.safetensors"])
def test_a_network_of_timm_is_converted_with_the_weights_of_a_file(file, weights, place, capsys):
    arguments = ["convert", "timm:resnet10t", "--weights", file, *TINY, "-o", "made", *SHAPE, *STEM]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    certificate = NetworkCertificate.load("made/certificate.json")
    assert printed == f"{certificate.summary()}\nwrote made\n"
    assert certificate.images == "one standard normal image (1, 3, 32, 32), seed 0"
    assert {layer.name for layer in certificate.layers} == {"conv1.0", "conv1.3", "conv1.6"}
    loaded = load_network("made")
    assert isinstance(loaded.conv1[0], RelativeAttention2d)
    assert torch.equal(loaded.fc.weight, weights.fc.weight)
    assert json.loads((place / "made" / "config.json").read_text())["options"] == {"num_classes": 3}


def test_there_and_back(weights, capsys):
    wanted = weights.state_dict()
    arguments = [
        "convert",
        "timm:resnet10t",
        "--weights",
        "weights.pth",
        *TINY,
        "-o",
        "made",
        *SHAPE,
        *STEM,
    ]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(["convert", "made", "--to", "conv", "-o", "back", *SHAPE, "--json"]) == 0
    certificate = NetworkCertificate.from_json(capsys.readouterr().out)
    assert certificate.direction == "network_to_conv"
    back = load_network("back")
    assert not any(isinstance(module, RelativeAttention2d) for module in back.modules())
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in wanted.items())


def test_images_are_read_and_counted(weights, capsys):
    Path("pictures").mkdir()
    for number in range(3):
        Image.new("RGB", (50, 40), (80 * number, 90, 100)).save(f"pictures/{number}.png")
    arguments = [
        "convert",
        "timm:resnet10t",
        "--weights",
        "weights.pth",
        *TINY,
        "--include",
        "conv1.0",
        "-o",
        "made",
    ]
    assert main([*arguments, "--images", "pictures", "--limit", "2"]) == 0
    certificate = NetworkCertificate.load("made/certificate.json")
    assert certificate.images == "2 images of pictures"
    assert certificate.shapes == ((2, 3, 176, 176),)
    assert certificate.top1_total == 2
    assert main([*arguments[:-1], "one", "--images", "pictures", "--limit", "1"]) == 0
    assert NetworkCertificate.load("one/certificate.json").images == "1 image of pictures"


def test_a_network_trained_here_says_how_its_images_are_prepared(capsys):
    Path("photos").mkdir()
    Image.new("RGB", (50, 40), (80, 90, 100)).save("photos/a.png")
    arguments = [
        "convert",
        "convattn:cifar10-small",
        "--to",
        "conv",
        "--kernel-size",
        "7",
        "--images",
        "photos",
    ]
    asked = ["--allow-difference", "-o"]
    assert main([*arguments, *asked, "made"]) in (0, 3)
    assert re.search(r"top-1 changed +[01] of 1\n", capsys.readouterr().out)
    with Image.open("photos/a.png") as picture:
        pixels = torch.from_numpy(np.array(picture.resize((32, 32), Image.Resampling.BICUBIC)))
    np.save("array.npy", normalise(pixels.movedim(2, 0)[None], CIFAR10_MEAN, CIFAR10_STD).numpy())
    assert main([*arguments[:-1], "array.npy", *asked, "other"]) in (0, 3)
    by_hand = NetworkCertificate.load("other/certificate.json")
    found = replace(NetworkCertificate.load("made/certificate.json"), images=by_hand.images)
    assert found == by_hand


def test_a_trained_network_of_attention_becomes_convolutions(capsys):
    torch.manual_seed(0)
    save_network(
        AttentionNet(width=8, depth=1, heads=9, ffn=8, centres="grid", image_size=8), "run"
    )
    assert (
        main(
            [
                "convert",
                "run",
                "--to",
                "conv",
                "-o",
                "made",
                "--kernel-size",
                "7",
                "--allow-difference",
            ]
        )
        == 3
    )
    assert isinstance(load_network("made").blocks[0].mixer, nn.Conv2d)
    assert isinstance(load_network("made").blocks[0].dense, nn.Linear)
    certificate = NetworkCertificate.load("made/certificate.json")
    assert certificate.shapes == ((1, 3, 8, 8),)


def test_an_attention_layer_becomes_a_convolution(capsys):
    layer, _ = convert.conv_to_attention(nn.Conv2d(2, 3, 3))
    convert.save_layer(layer, "layer")
    assert main(["convert", "layer", "--to", "conv", "-o", "made"]) == 0
    assert type(load_network("made")) is nn.Conv2d
    assert Certificate.load("made/certificate.json").direction == "attention_to_conv"


def test_a_failed_certificate_writes_nothing(place, monkeypatch, capsys):
    honest = convert.network_to_attention

    def failing(*arguments, **options):
        made, certificate = honest(*arguments, **options)
        return made, replace(certificate, verdict="failed")

    monkeypatch.setattr(convert, "network_to_attention", failing)
    arguments = [
        "convert",
        "convattn:ResNet",
        "--random-weights",
        "--set",
        "width=4",
        "--include",
        "stem.*",
    ]
    assert main([*arguments, "-o", "made"]) == 1
    assert capsys.readouterr().out.endswith("wrote nothing\n")
    assert list(place.iterdir()) == []


OWN = ["convert", "convattn:ResNet", "--set", "width=4", "-o", "made"]


def test_a_trained_network_of_the_package_is_converted(capsys):
    name = pretrained_names()[0]
    arguments = [
        "convert",
        f"convattn:{name}",
        "--to",
        "conv",
        "--kernel-size",
        "3",
        "--allow-difference",
    ]
    assert main([*arguments, "-o", "made", "--json"]) == 3
    certificate = NetworkCertificate.from_json(capsys.readouterr().out)
    assert {layer.kernel_size for layer in certificate.layers} == {(3, 3)}
    made, source = load_network("made"), load_network(f"convattn:{name}")
    assert not any(isinstance(module, RelativeAttention2d) for module in made.modules())
    assert torch.equal(made.head.weight, source.head.weight)


ASKED = {
    "not asked for": ([], False),
    "a tolerance that it exceeds": (["--tolerance", "0.5"], False),
    "a tolerance": (["--tolerance", "0.9"], True),
    "by name": (["--allow-difference"], True),
}


@pytest.mark.parametrize(("asked", "written"), ASKED.values(), ids=ASKED)
def test_a_network_that_is_different_is_written_only_if_asked_for(asked, written, place, capsys):
    arguments = [
        "convert",
        "convattn:cifar10-small",
        "--to",
        "conv",
        "--kernel-size",
        "3",
        "-o",
        "k3",
    ]
    assert main([*arguments, *asked]) == 3
    out = capsys.readouterr().out
    assert out.startswith(
        "network to conv: different (by 0.73 of the largest output, 3 of 16 decisions changed, 6 layers"
    )
    assert out.count("\n  layer           stages.") == 6
    assert 'made smaller    by a larger window, or none; at borders by borders="exact"' in out
    assert [path.name for path in place.iterdir()] == (["k3"] if written else [])
    if written:
        assert out.endswith("wrote k3\n")
        assert "network to conv: different (" in Path("k3/README.md").read_text(encoding="utf-8")
    else:
        assert "wrote nothing, because the result is different" in out


def test_a_network_that_is_close_is_written_and_only_on_images(capsys):
    arguments = [
        "convert",
        "convattn:ResNet",
        "--random-weights",
        "--set",
        "width=4",
        "--include",
        "stem.*",
    ]
    arguments += ["--sharpness", "12", "-o", "made"]
    assert main([*arguments, "--shape", "3,32,32"]) == 3
    assert not Path("made").exists()
    torch.manual_seed(0)
    np.save("images.npy", torch.randn(4, 3, 32, 32).numpy())
    assert main([*arguments, "--images", "images.npy"]) == 0
    assert "network to attention: close (by" in capsys.readouterr().out
    assert NetworkCertificate.load("made/certificate.json").tolerance == 0.01


NAMED = f"convattn:{pretrained_names()[0]}"
MISTAKES = {
    "trained network with weights": (
        ["convert", NAMED, "-o", "made", "--random-weights"],
        f"--random-weights is for a network of another library; {NAMED} has its own",
    ),
    "trained network with options": (
        ["convert", NAMED, "-o", "made", "--set", "width=3"],
        f"--set is for a network of another library; {NAMED} has its own",
    ),
    "unknown trained network": (
        ["convert", f"{NAMED}s", "-o", "made"],
        f"unknown network '.*s': did you mean '{pretrained_names()[0]}'\\? Known: .*ResNet.*{pretrained_names()[0]}",
    ),
    "no word on weights": (
        ["convert", "timm:resnet10t", "-o", "made"],
        "must be given by exactly one of .*but none is given",
    ),
    "two words on weights": (
        [*OWN, "--random-weights", "--pretrained"],
        "exactly one of --weights FILE, .*, but --pretrained and --random-weights are given",
    ),
    "no weights to fetch": ([*OWN, "--pretrained"], "convattn:ResNet has no pretrained weights"),
    "weights that do not fit": (
        [*OWN, "--weights", "other.pth"],
        "do not fit ResNet: .*missing: stem.0.weight.*: a",
    ),
    "no weights": (
        [*OWN, "--weights", "absent.pth"],
        "cannot read weights from absent.pth: FileNotFoundError",
    ),
    "unknown network": (
        ["convert", "timm:resnt18", "-o", "made", "--random-weights"],
        "did you mean 'resnet18'",
    ),
    "unknown home": (
        ["convert", "tim:resnet18", "-o", "made", "--random-weights"],
        "unknown source 'tim'",
    ),
    "unknown option": (
        [*OWN, "--random-weights", "--set", "widht=3"],
        "options must fit convattn:ResNet",
    ),
    "weights of a folder": (
        ["convert", "run", "-o", "made", "--random-weights"],
        "--random-weights is for a network of",
    ),
    "arguments of a folder": (
        ["convert", "run", "-o", "made", "--set", "width=4"],
        "--set is for a network of another",
    ),
    "no images": (
        [*OWN, "--random-weights", "--images", "absent"],
        "--images must be a folder or a file that exists",
    ),
    "images of our own": (
        [*OWN, "--random-weights", "--images", "photos"],
        "pictures cannot be prepared for this ResNet",
    ),
    "images and a shape": (
        [*OWN, "--images", "run", *SHAPE],
        "--shape cannot be given with --images",
    ),
    "no limit": (
        [*OWN, "--random-weights", "--images", "run", "--limit", "0"],
        "--limit: must be at least 1, but is 0",
    ),
    "limit of no images": ([*OWN, "--random-weights", "--limit", "3"], "--limit needs --images"),
    "no colon": (
        ["convert", "resnet18", "-o", "made"],
        "there is no folder 'resnet18'; did you mean timm:resnet18.$",
    ),
    "no colon, with a tag": (
        ["convert", "resnet18.a1_in1k", "-o", "made"],
        "did you mean timm:resnet18.a1_in1k.$",
    ),
    "a file": (["convert", "resnet18.pth", "-o", "made"], "there is no folder 'resnet18.pth'$"),
    "no folder": (
        ["convert", "absent", "-o", "made", "--random-weights"],
        "there is no folder 'absent'$",
    ),
    "all left out": (
        [*OWN, "--random-weights", "--exclude", "*"],
        r"no convolution to convert in ResNet: include and exclude leave out all of them \(stem\.0, .* more",
    ),
    "limit for a layer": (
        ["convert", "layer", "-o", "made", "--limit", "3"],
        "--limit is for a network, and layer holds a single layer",
    ),
    "shape": (
        [*OWN, "--random-weights", "--shape", "3,x"],
        "--shape must be whole numbers separated by commas",
    ),
    "shape of no image": (
        [*OWN, "--random-weights", "--shape", "3,1000000,1000000"],
        r"shape must be the shape of an image that fits into memory, but is \(3, 1000000, 1000000\)$",
    ),
    "shape of no number": (
        [*OWN, "--random-weights", "--shape", f"3,{10**20},1"],
        "shape must be the shape of an image that fits into memory, but is .3, 1000000000000000000",
    ),
    "nested deeply": (
        ["convert", "deep", "-o", "made"],
        "^convattn: deep holds no saved network or layer: config.json",
    ),
    "shape that does not fit": (
        [*OWN, "--random-weights", "--shape", "5,8,8"],
        "images must fit the network",
    ),
    "option of attention": (
        [*OWN, "--to", "conv", "--sharpness", "0"],
        "--sharpness cannot be given with --to conv",
    ),
    "option of conv": ([*OWN, "--mass", "0.1"], "--mass cannot be given with --to attention"),
    "nothing to convert": (
        [*OWN, "--random-weights", "--to", "conv"],
        "no layer could be converted",
    ),
    "pattern": (
        [*OWN, "--random-weights", "--include", "x*"],
        "include must be a pattern that matches convolutions",
    ),
    "sharpness": (
        [*OWN, "--random-weights", "--sharpness", "0"],
        "sharpness must be a positive finite number",
    ),
    "taken": (["convert", "run", "-o", "run"], "--output must be new or empty"),
    "network's option for a layer": (
        ["convert", "layer", "-o", "made", "--limit", "3"],
        "--limit is for a network, and",
    ),
}


def test_without_timm_no_network_of_it_is_meant(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["convert", "resnet18", "-o", "made"]) == 2
    assert capsys.readouterr().err.endswith("there is no folder 'resnet18'\n")


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_and_write_nothing(arguments, message, place, capsys):
    save_network(ResNet(1, width=4), "run")
    convert.save_layer(nn.Conv2d(2, 3, 3), "layer")
    torch.save({"a": torch.zeros(1)}, "other.pth")
    Path("photos").mkdir()
    Image.new("RGB", (50, 40)).save("photos/a.png")
    Path("deep").mkdir()
    Path("deep/config.json").write_text(100_000 * "[" + 100_000 * "]")
    before = sorted(path.name for path in place.iterdir())
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err), err
    assert sorted(path.name for path in place.iterdir()) == before


def test_gates_that_are_closed_are_saved_and_loaded(capsys):
    arguments = [
        "convert",
        "convattn:ResNet",
        "--random-weights",
        "--set",
        "width=4",
        "--include",
        "stem.*",
    ]
    assert main([*arguments, "--content", "-o", "made"]) == 0
    loaded, x = load_network("made"), torch.randn(2, 3, 8, 8)
    assert loaded.stem[0].gate_kind == "tanh"
    loaded.stem[0].gate.data += 0.5
    save_network(loaded, "open")
    assert torch.equal(load_network("open")(x), loaded(x))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("[2, 5]", [2, 5]),
        ("true", True),
        ("null", None),
        ("avg", "avg"),
        ("3x", "3x"),
        ('"3"', "3"),
    ],
)
def test_value_is_json_or_else_text(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)
