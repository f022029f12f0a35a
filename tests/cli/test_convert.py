"""`convattn convert`: single layers, and networks of timm, of this package and of folders."""

import json
import re
from dataclasses import replace
from operator import call
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.cli.command import run
from tests.cli.saved_layers import convolution
from torch import nn

from convattn import convert, load_network, save_network
from convattn.budget import assert_within_budget, roundings
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, normalise
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet, ResNet

SHAPE = "--shape 3,32,32"
TIMM = "convert timm:test_resnet --set num_classes=3 --weights weights.pth"
RESNET = "convert convattn:ResNet --set width=4"
DRAWN = f"{RESNET} --random-weights"
SMALL = "convert convattn:cifar10-small --to conv"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def layer(place):
    """The folder `layer` with a convolution."""
    convolution(place).rename("layer")


@pytest.fixture
def weights():
    """A network of timm, and files with its weights."""
    torch.manual_seed(5)
    network = timm.create_model("test_resnet", num_classes=3).eval()
    torch.save(network.state_dict(), "weights.pth")
    save_file(network.state_dict(), "weights.safetensors")
    return network


def attention_of(network):
    return [module for module in network.modules() if isinstance(module, RelativeAttention2d)]


def test_a_converted_layer_computes_the_same(layer, capsys):
    assert run("convert layer -o there/attention") == 0
    made = Path("there/attention")
    names = ["README.md", "certificate.json", "config.json", "model.safetensors"]
    assert sorted(path.name for path in made.iterdir()) == names
    conv, attention = load_network("layer"), load_network(made)
    x = torch.randn(2, 2, 11, 7)
    exact = nn.functional.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)
    assert_within_budget(attention(x), exact, roundings(call, conv, x))
    certificate = Certificate.load(made / "certificate.json")
    assert capsys.readouterr().out == f"{certificate.summary()}\nwrote {made}\n"


def test_json_is_the_certificate(layer, capsys):
    assert run("convert layer --output made --sharpness 5 --allow-difference --json") == 3
    printed = Certificate.from_json(capsys.readouterr().out)
    assert printed == Certificate.load("made/certificate.json")
    assert printed.sharpness == pytest.approx(5)
    assert printed.verdict == "different"


@pytest.mark.usefixtures("without_type_checks")
def test_an_attention_layer_becomes_a_convolution_and_is_not_converted_again(layer, capsys):
    assert run("convert layer -o attention") == 0
    assert run("convert attention --to conv -o back") == 0
    assert type(load_network("back")) is nn.Conv2d
    assert Certificate.load("back/certificate.json").direction == "attention_to_conv"
    assert run("convert attention -o again") == 2
    message = "cannot convert RelativeAttention2d: supported convolutions are Conv1d, Conv2d"
    assert capsys.readouterr().err.startswith(f"convattn: {message}")
    assert not Path("again").exists()


def test_an_edited_layer_is_refused_unless_it_is_accepted(layer, capsys):
    file = Path("layer/config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "convattn": "mine"}))
    assert run("convert layer -o made") == 2
    assert "config.json is not what was saved; if it was edited on purpose" in (
        capsys.readouterr().err
    )
    assert not Path("made").exists()
    assert run("convert layer -o made --no-verify") == 0


@pytest.mark.filterwarnings("default::convattn.errors.CertificateWarning")
def test_a_conversion_that_failed_is_said_on_loading(capsys):
    layer, certificate = convert.conv_to_attention(nn.Conv1d(2, 3, 5))
    failed = replace(certificate, verdict="failed")
    save_network(layer, "layer", certificate=failed)
    assert run("convert layer --to conv -o made") == 0
    err = capsys.readouterr().err
    assert err.startswith("convattn: the certificate in layer says that the conversion failed")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("conversion", "line"),
    [
        ("conv_to_attention", "convert layer"),
        ("network_to_attention", f"{DRAWN} --include stem.*"),
    ],
)
def test_a_failed_certificate_is_told_and_writes_nothing(
    layer, conversion, line, monkeypatch, capsys
):
    honest = getattr(convert, conversion)

    def failing(*arguments, **options):
        converted, certificate = honest(*arguments, **options)
        return converted, replace(certificate, verdict="failed")

    monkeypatch.setattr(convert, conversion, failing)
    assert run(f"{line} -o made --allow-difference") == 1
    out = capsys.readouterr().out
    assert re.match(r"(conv|network) to attention: failed", out)
    assert out.endswith("wrote nothing\n")
    assert run(f"{line} -o made --json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "failed"
    assert not Path("made").exists()


PERMISSIONS = {
    "none": ("", False),
    "a tolerance that it exceeds": ("--tolerance 0.001", False),
    "a tolerance": ("--tolerance 0.2", True),
    "by name": ("--allow-difference", True),
}


@pytest.mark.parametrize(("words", "written"), PERMISSIONS.values(), ids=PERMISSIONS)
def test_a_layer_that_is_different_is_written_only_with_permission(layer, words, written, capsys):
    assert run(f"convert layer -o made --sharpness 5 {words}") == 3
    out = capsys.readouterr().out
    assert out.startswith("conv to attention: different (by 0.0")
    assert "made smaller    by more sharpness, or none: hard heads are exact" in out
    assert Path("made").exists() is written
    if written:
        assert out.endswith("wrote made\n")
        assert Certificate.load("made/certificate.json").verdict == "different"
    else:
        assert "wrote nothing, because the result is different: make the difference smaller" in out


def test_a_network_that_is_different_says_where_and_is_written_only_with_permission(place, capsys):
    assert run(f"{SMALL} --kernel-size 3 -o narrow") == 3
    out = capsys.readouterr().out
    assert out.startswith(
        "network to conv: different (by 0.91 of its channel's largest output, 3 of 16 decisions changed, 7 layers"
    )
    assert out.count("\n  layer           stages.") == 6
    assert 'made smaller    by a larger window, or none; at borders by borders="exact"' in out
    assert list(place.iterdir()) == []
    assert run(f"{SMALL} --kernel-size 3 -o narrow --allow-difference --json") == 3
    certificate = NetworkCertificate.from_json(capsys.readouterr().out)
    stem, *others = certificate.layers
    assert (stem.kernel_size, stem.verdict) == ((2, 2), "exact")
    assert {layer.kernel_size for layer in others} == {(3, 3)}
    assert "network to conv: different (" in Path("narrow/README.md").read_text(encoding="utf-8")
    page = Path("narrow/index.html").read_text(encoding="utf-8")
    assert "cifar10-small as convolutions: <span" in page
    for layer in certificate.layers:
        word = layer.verdict
        assert f'<th scope="row">{layer.name}</th>\n<td class="word {word}">{word}</td>' in page
    narrow, source = load_network("narrow"), load_network("convattn:cifar10-small")
    save_network(narrow, "narrow", overwrite=True)
    assert not Path("narrow/index.html").exists()
    assert not attention_of(narrow)
    assert torch.equal(narrow.head.weight, source.head.weight)


def test_a_network_that_is_close_is_written_and_only_on_images(capsys):
    line = f"{DRAWN} --include stem.* --sharpness 12 -o made"
    assert run(f"{line} {SHAPE}") == 3
    assert not Path("made").exists()
    torch.manual_seed(0)
    np.save("images.npy", torch.randn(4, 3, 32, 32).numpy())
    assert run(f"{line} --images images.npy") == 0
    assert "network to attention: close (by" in capsys.readouterr().out
    assert NetworkCertificate.load("made/certificate.json").tolerance == 0.01


def test_borders_are_exact_on_request(capsys):
    torch.manual_seed(0)
    save_network(AttentionNet("quadratic", width=8, depth=1, heads=4, ffn=8), "small")
    assert run("convert small --to conv --borders exact --shape 3,16,16 -o made") == 0
    assert "1 normalised convolution" in capsys.readouterr().out
    assert NetworkCertificate.load("made/certificate.json").verdict == "exact"


def test_a_network_of_timm_is_converted_there_and_back(weights, capsys):
    assert run(f"{TIMM} -o made --include conv1.* {SHAPE}") == 0
    certificate = NetworkCertificate.load("made/certificate.json")
    assert capsys.readouterr().out == f"{certificate.summary()}\nwrote made\n"
    assert certificate.images == "one standard normal image (1, 3, 32, 32), seed 0"
    assert {layer.name for layer in certificate.layers} == {"conv1.0", "conv1.3", "conv1.6"}
    assert isinstance(load_network("made").conv1[0], RelativeAttention2d)
    assert json.loads(Path("made/config.json").read_text())["options"] == {"num_classes": 3}
    assert run(f"convert made --to conv -o back {SHAPE} --json") == 0
    certificate = NetworkCertificate.from_json(capsys.readouterr().out)
    assert certificate.direction == "network_to_conv"
    back = load_network("back")
    assert not attention_of(back)
    for name, tensor in weights.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)


def test_images_are_read_and_counted(weights):
    Path("pictures").mkdir()
    for number in range(3):
        Image.new("RGB", (50, 40), (80 * number, 90, 100)).save(f"pictures/{number}.png")
    line = f"{TIMM.replace('pth', 'safetensors')} --include conv1.0 --images pictures"
    assert run(f"{line} --limit 2 -o two") == 0
    certificate = NetworkCertificate.load("two/certificate.json")
    assert certificate.images == "2 images of pictures"
    assert certificate.shapes == ((2, 3, 160, 160),)
    assert certificate.top1_total == 2
    assert run(f"{line} --limit 1 -o one") == 0
    assert NetworkCertificate.load("one/certificate.json").images == "1 image of pictures"


def test_a_network_trained_here_says_how_its_images_are_prepared(capsys):
    Path("photos").mkdir()
    picture = Image.effect_noise((50, 40), 90).convert("RGB")
    picture.save("photos/a.png")
    line = f"{SMALL} --include stages.2.second --kernel-size 7 --allow-difference"
    assert run(f"{line} --images photos -o made") in (0, 3)
    assert re.search(r"top-1 changed +[01] of 1\n", capsys.readouterr().out)
    square = picture.resize((32, 32), Image.Resampling.BICUBIC, box=(5, 0, 45, 40))
    pixels = np.array(square)
    prepared = normalise(torch.from_numpy(pixels).movedim(2, 0)[None], CIFAR10_MEAN, CIFAR10_STD)
    np.save("array.npy", prepared.numpy())
    assert run(f"{line} --images array.npy -o other") in (0, 3)
    by_hand = NetworkCertificate.load("other/certificate.json")
    certificate = NetworkCertificate.load("made/certificate.json")
    assert replace(certificate, images=by_hand.images) == by_hand


def test_a_saved_network_is_compared_on_images_of_its_size():
    torch.manual_seed(0)
    network = AttentionNet(width=8, depth=1, heads=9, ffn=8, centres="grid", image_size=8)
    save_network(network, "run")
    assert run("convert run --to conv -o made --kernel-size 7 --allow-difference") == 3
    block = load_network("made").blocks[0]
    assert (type(block.mixer), type(block.dense)) == (nn.Conv2d, nn.Linear)
    assert NetworkCertificate.load("made/certificate.json").shapes == ((1, 3, 8, 8),)


def test_gates_that_are_closed_are_saved_and_loaded():
    assert run(f"{DRAWN} --include stem.* --content -o made") == 0
    loaded, x = load_network("made"), torch.randn(2, 3, 8, 8)
    assert loaded.stem[0].gate_kind == "tanh"
    loaded.stem[0].gate.data += 0.5
    save_network(loaded, "open")
    assert torch.equal(load_network("open")(x), loaded(x))


MISTAKES = {
    f"{SMALL} --random-weights": "--random-weights is for a network of another library",
    "convert run --set width=4": "--set is for a network of another library; run has its own",
    "convert convattn:cifar10-smal": "unknown network '.*': did you mean 'cifar10-small'",
    "convert timm:resnet10t": "must be given by exactly one of .*but none is given",
    f"{DRAWN} --pretrained": "but --pretrained and --random-weights are given",
    f"{RESNET} --pretrained": "convattn:ResNet has no pretrained weights",
    f"{RESNET} --weights other.pth": "do not fit ResNet: .*missing: stem.0.weight.*: a",
    f"{RESNET} --weights absent.pth": "cannot read weights from absent.pth: FileNotFoundError",
    f"{DRAWN} --images absent": "--images must be a folder or a file that exists",
    f"{DRAWN} --images photos": "nothing says how pictures are prepared for this ResNet: give --mean",
    f"{RESNET} --images run {SHAPE}": "--shape cannot be given with --images",
    f"{DRAWN} --images run --limit 0": "--limit: must be an integer of at least 1, but is '0'",
    f"{DRAWN} --limit 3": "--limit needs --images",
    "convert resnet18": "there is no folder 'resnet18'; a network by name is timm:resnet18, torchvision:resnet18, "
    "hf:OWNER/MODEL or convattn:NAME",
    "convert hf:owner/model": "hf:owner/model is converted in Python: only load_network",
    f"{DRAWN} --exclude *": r"no convolution to convert in ResNet: .* left out by exclude",
    "convert layer --limit 3": "--limit is for a network, and layer holds a single layer",
    "convert layer --mean 0.5 --std 0.5": "--mean is for a network, and layer holds a single layer",
    "convert layer --tolerance 1": "--tolerance must be a share in .0, 1., but is 1.0",
    f"{DRAWN} --shape 3,x": r"--shape: \[1\] must be an integer of at least 1, but is 'x'",
    f"{DRAWN} --mean a --std 1": r"--mean: \[0\] must be a number, but is 'a'",
    f"{DRAWN} --shape 3,1000000,1000000": r"shape must be the shape of an image that fits into mem",
    f"{DRAWN} --shape 5,8,8": "images must fit the network",
    "convert deep": "^convattn: deep holds no saved network: config.json",
    f"{RESNET} --to conv --sharpness 0": "--sharpness cannot be given with --to conv",
    f"{RESNET} --mass 0.1": "--mass cannot be given with --to attention",
    f"{DRAWN} --to conv": "no layer could be converted",
    f"{DRAWN} --sharpness 0": "sharpness must be a positive finite number",
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes_are_told_and_write_nothing(line, message, layer, place, capsys):
    save_network(ResNet(1, width=4), "run")
    torch.save({"a": torch.zeros(1)}, "other.pth")
    Path("photos").mkdir()
    Image.new("RGB", (50, 40)).save("photos/a.png")
    Path("deep").mkdir()
    Path("deep/config.json").write_text(100_000 * "[" + 100_000 * "]")
    before = sorted(path.name for path in place.iterdir())
    assert run(f"{line} -o made") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err), err
    assert sorted(path.name for path in place.iterdir()) == before
