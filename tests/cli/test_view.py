"""`convattn view`: pages of networks."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.command import run
from tests.cli.page_scene import scene_of

from convattn import load_network, save_network
from convattn.cli.view import WrittenPage
from convattn.heads import analyze
from convattn.models import AttentionNet
from convattn.networks.pretrained import network_folder

SMALL = "convattn:cifar10-small"
PAGE = Path("page.html")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def network(place):
    """Words of the command that name a small network and three images."""
    torch.manual_seed(0)
    save_network(AttentionNet(width=8, depth=1, heads=4, ffn=8), "network")
    np.save("images.npy", np.zeros((3, 3, 8, 8), np.float32))
    return "network --images images.npy"


def view(words):
    """Runs the command, and returns the header of the scene in the page."""
    assert run(f"view {words} -o {PAGE}") == 0
    return scene_of(PAGE).header


def test_the_packaged_network_is_shown_on_its_samples():
    header = view(f"{SMALL} --limit 5 --compare untrained --compare converted")
    assert header["title"] == "cifar10-small"
    assert len(header["images"]) == 5
    assert header["images"][4]["label"] == "deer"
    names = [network["name"] for network in header["networks"]]
    assert names == ["trained", "untrained", "converted"]
    for network, encoding in zip(
        header["networks"], ["quadratic", "quadratic", "shift"], strict=True
    ):
        assert network["program"]
        encodings = [layer["attention"]["heads"]["encoding"] for layer in network["layers"]]
        assert encodings == ["shift", *[encoding] * 6]
    assert header["networks"][0]["classes"][9] == "truck"
    assert header["networks"][0]["timeline"]["layers"] == [1, 2, 3, 4, 5, 6]
    note = header["networks"][2]["note"]
    assert re.search(r"one tap\. The class is the same for \d of 5 images", note)
    assert PAGE.stat().st_size < 5e6


def test_the_page_is_named_anew_said_and_opened(network, place, opened, capsys):
    Path("view.html").write_text("precious")
    assert run(f"view {network} --compare untrained") == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"wrote view-2\.html \(\d\.\d MB\)\n", said.out)
    assert said.err.splitlines() == [
        "loading network",
        "making what stands beside it: untrained",
        "computing the maps",
    ]
    assert opened == [(place / "view-2.html").as_uri()]
    assert Path("view.html").read_text() == "precious"


def test_where_the_page_is_as_json(network, opened, capsys):
    assert run(f"view {network} --limit 2 -o {PAGE} --json") == 0
    written = WrittenPage.from_json(capsys.readouterr().out)
    assert written == WrittenPage(str(PAGE), PAGE.stat().st_size)
    assert opened == []


def test_a_network_with_content_a_report_and_images_of_ones_own():
    torch.manual_seed(0)
    network = AttentionNet("quadratic", content=True, width=8, depth=2, heads=4, ffn=8).eval()
    save_network(network, "network")
    images = torch.randn(3, 3, 32, 32)
    analyze(network, images, controls=(), progress=False).save("report.json")
    np.save("images.npy", images.numpy())
    words = "--images images.npy --limit 2 --report report.json"
    header = view(f"network {words} --layer blocks.1.mixer")
    assert len(header["images"]) == 2
    (layer,) = header["networks"][0]["layers"]
    assert layer["attention"]["parts"] == ["both", "position", "content"]
    assert layer["attention"]["images"] == [0, 1, "mean"]
    assert layer["sentence"]


def test_a_network_of_timm_on_pictures_beside_its_converted_copy():
    """Its patch embedding, a convolution, becomes 256 heads of one pixel each, which have no counterpart."""
    pytest.importorskip("timm")
    Path("pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (50, 40), (number * 200, 80, 10)).save(f"pictures/{number}.png")
    words = "--random-weights --set img_size=32 --set depth=2"
    words += " --images pictures --compare converted"
    header = view(f"timm:vit_tiny_patch16_224 {words}")
    assert [image["name"] for image in header["images"]] == ["0.png", "1.png"]
    first, converted = header["networks"]
    assert first["input"]["mean"] == [0.5, 0.5, 0.5]
    assert first["note"] == "Its weights are random, drawn with seed 0."
    assert [layer["name"] for layer in converted["layers"]] == ["blocks.0.attn", "blocks.1.attn"]
    for one, other in zip(first["layers"], converted["layers"], strict=True):
        assert (one["grid"], one["prefix"]) == ([2, 2], ["class"])
        for key in ("grid", "place", "keys", "prefix"):
            assert one[key] == other[key]
    tensors = scene_of(PAGE).tensors
    levels = [tensors[f"maps/{network}/1/both/0/levels"].int() for network in (0, 1)]
    assert (levels[0] - levels[1]).abs().max() <= 1
    left_out = "Left out are those that have no counterpart to compare: patch_embed.proj."
    assert f"{left_out} The class is the same for 2 of 2 images" in converted["note"]
    assert converted["note"].endswith(first["note"])


MISTAKES = {
    "limit": (
        f"{SMALL} --limit 0",
        "Invalid value for --limit: must be an integer of at least 1, but is '0'",
    ),
    "no images": (f"{SMALL} --images missing", "--images must be a folder or a file that"),
    "kernel size": (f"{SMALL} --kernel-size 5", "--kernel-size needs --compare converted"),
    "layer": (f"{SMALL} --layer stages.9", "attention layers in the network, for instance"),
    "another network": (
        f"{SMALL} --compare convattn:cifar10-smal",
        "did you mean 'cifar10-small'",
    ),
    "comparison": (
        f"{SMALL} --compare untrain",
        "--compare must be untrained, converted, or a network",
    ),
    "untrained twice": (
        "timm:resnet18 --random-weights --images full --compare untrained",
        "--compare untrained cannot be given with --random-weights",
    ),
    "no report": (
        f"{SMALL} --report missing.json",
        "head report (the folder that `convattn analyze -o` makes): cannot read a head report from missing.json: ",
    ),
    "another file": (
        f"{SMALL} --report full/mine",
        "full/mine: not a head report: the text is not JSON",
    ),
    "unknown data": (
        "convattn:AttentionNet --random-weights",
        "AttentionNet is not known to be trained on CIFAR-10 or digits",
    ),
    "taken": (f"{SMALL} -o full/mine", "--output must be a file that does not exist"),
    "no folder": (
        f"{SMALL} -o none/page.html",
        "--output cannot be made: No such file or directory",
    ),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_and_nothing_is_written(words, message, place, opened, capsys):
    Path("full").mkdir()
    Path("full/mine").write_text("precious")
    assert run(f"view {words}") == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in place.iterdir()] == ["full"]
    assert opened == []


def test_a_network_of_heads_that_stay_has_no_timeline():
    """Its folder has no heads.parquet."""
    network = AttentionNet("learned_table", width=8, depth=1, heads=4, ffn=8, image_size=8)
    save_network(network, "network")
    np.save("images.npy", np.zeros((1, 3, 8, 8), np.float32))
    assert view("network --images images.npy")["networks"][0]["timeline"] is None


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ("all", "report was measured with other weights than network has, of blocks.0.mixer"),
        ("stem", "with other weights than network has, of other layers than those measured"),
        ("names", "report is of another network: network has no layer layer"),
    ],
)
def test_a_report_of_another_network_is_refused(network, differs, message, capsys):
    """As of another run of the same recipe, whose layers have the same names."""
    other = AttentionNet(width=8, depth=1, heads=4, ffn=8).eval()
    if differs == "stem":
        other = load_network("network")
        torch.nn.init.zeros_(next(other.parameters()))
    report = analyze(other, torch.randn(2, 3, 8, 8), controls=(), progress=False)
    report.save("report.json")
    if differs == "names":
        text = Path("report.json").read_text().replace("blocks.0.mixer", "layer")
        Path("report.json").write_text(text)
    assert run(f"view {network} --report report.json -o {PAGE}") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_damaged_training_is_not_left_out(capsys):
    """A page without a timeline would say that there is none."""
    shutil.copytree(network_folder(SMALL), "run")
    Path("run/heads.parquet").write_bytes(b"PAR1")
    assert run(f"view run -o {PAGE}") == 2
    assert "cannot read heads from" in capsys.readouterr().err
