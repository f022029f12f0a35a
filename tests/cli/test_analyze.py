import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.command import run

from convattn.data import CIFAR10_MEAN, CIFAR10_STD, normalise
from convattn.heads.head_report import Estimate, HeadReport
from convattn.lab import html_pages
from convattn.lab.html_pages import write_report
from convattn.networks.images import Pictures

SOURCE = "timm:vit_tiny_patch16_224 --random-weights --set img_size=32 --set depth=2"
FILES = [
    "distance.png",
    "heads.pdf",
    "heads.svg",
    "index.html",
    "report.json",
]


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 40, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number, picture in enumerate(pixels(6)):
        Image.fromarray(picture).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def made(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "report"
    assert run(f"analyze {SOURCE} --images {images} -o {folder}") == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves out the figures of a report, which take longer than its numbers and its page."""
    monkeypatch.setattr(html_pages, "distance_by_depth", lambda path, _: path.touch())
    monkeypatch.setattr(html_pages, "head_grid", lambda *_: None)


class Page(HTMLParser):
    """Collects what a page's tags say."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


def test_folder_holds_numbers_figures_and_a_page(made):
    assert sorted(file.name for file in made.iterdir()) == FILES
    report = HeadReport.load(made / "report.json")
    assert [layer.name for layer in report.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert (report.images, report.control_images, report.image_shape) == (6, 6, (3, 32, 32))
    assert [*report.layers[0].controls] == ["shuffled images"]  # random weights have no other


def test_page_stands_alone_and_can_be_read_aloud(made):
    page = Page((made / "index.html").read_text(encoding="utf-8"))
    report = HeadReport.load(made / "report.json")
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 1 + sum(len(layer.heads) for layer in report.layers)
    for attrs in pictures:
        assert attrs["src"].startswith("data:image/png;base64,")
        assert len(attrs["alt"]) > 20
    assert not [tag for tag, _ in page.tags if tag in {"script", "iframe"}]
    assert [attrs["href"] for tag, attrs in page.tags if tag == "link"] == ["data:,"]
    words = " ".join(page.words.split())
    for layer in report.layers:
        assert layer.name in words
        assert layer.sentence not in words
    for item in report.not_covered:
        assert item in words


def changed(report, **numbers):
    """The report with other numbers in every head, no controls, and a convolution score that its images leave open."""
    layers = []
    for layer in report.layers:
        heads = tuple(replace(head, **numbers) for head in layer.heads)
        measured = replace(layer.measured, heads=heads, convolution_score=Estimate(0.37, 0.96))
        layers.append(replace(layer, measured=measured, controls={}))
    return replace(report, layers=tuple(layers))


@pytest.mark.parametrize(
    ("position", "hard", "answer", "verdict"),
    [
        (0.95, 0.8, "6 of 6 heads are convolutions", "convolution "),
        (0.95, 0.2, "6 of 6 heads are convolutions", "convolution"),
        (0.3, 0.8, "0 of 6 heads are convolutions; 6 neighbours", "neighbour "),
        (math.nan, 0.2, "0 of 6 heads are convolutions; ", ""),
    ],
)
def test_page_answers_in_a_line_and_says_what_each_head_is(
    made, tmp_path, position, hard, answer, verdict, request
):
    if not math.isnan(position):  # what is unknown is to be drawn, too
        request.getfixturevalue("undrawn")
    shutil.copytree(made, tmp_path / "copy")
    numbers = {"position_score": Estimate(position, 0.0), "hard_share": Estimate(hard, 0.0)}
    numbers |= {"evenness": Estimate(0.5, 0.0)}
    report = changed(HeadReport.load(made / "report.json"), **numbers)
    text = write_report(report, tmp_path / "copy", source="timm:a", images="mine").read_text(
        encoding="utf-8"
    )
    words = " ".join(Page(text).words.split())
    assert f"{answer}" in words
    assert f"{report.headline()} (mine)." in words
    alternatives = [attrs["alt"] for tag, attrs in Page(text).tags if tag == "img"]
    assert sum(f": {verdict}" in one for one in alternatives) == 6
    assert "What do the heads of a do?" in words
    assert "convattn view timm:a --report" in words
    assert "undecided" in words
    assert "0.96" not in words
    assert "random weights" not in words
    assert not [tag for tag, _ in Page(text).tags if tag == "a"], "there is no interactive page"


def test_random_weights_are_in_the_title(made):
    text = (made / "index.html").read_text(encoding="utf-8")
    assert "<title>Heads of VisionTransformer, random weights</title>" in text
    assert "(random weights)</h1>" in text
    record = json.loads((made / "report.json").read_text(encoding="utf-8"))
    assert "untrained: the measured weights are themselves random" in record["not_covered"]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".png")])
def test_figures_are_wide_enough_for_a_page(made, name):
    with Image.open(made / name) as image:
        assert image.width > 500


@pytest.mark.usefixtures("undrawn")
def test_images_come_from_a_folder_or_an_array(images, made, tmp_path, capsys):
    np.save(tmp_path / "a.npy", pixels(6))
    arguments = f"--images {tmp_path / 'a.npy'} -o {tmp_path / 'made'} --json"
    assert run(f"analyze {SOURCE} {arguments}") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((made / "report.json").read_text())


@pytest.mark.usefixtures("undrawn")
def test_only_some_layers_and_no_controls(images, tmp_path):
    options = "--layer blocks.1.attn --no-controls --limit 3"
    assert run(f"analyze {SOURCE} --images {images} -o {tmp_path / 'few'} {options}") == 0
    report = HeadReport.load(tmp_path / "few" / "report.json")
    assert [(layer.name, layer.controls) for layer in report.layers] == [("blocks.1.attn", {})]
    assert (report.images, report.control_images) == (3, 0)


@pytest.mark.usefixtures("undrawn")
def test_networks_of_the_package_say_how_images_are_prepared(images, tmp_path, capsys, monkeypatch):
    seen, read = {}, Pictures.__getitem__
    monkeypatch.setattr(Pictures, "__getitem__", lambda self, n: seen.setdefault(n, read(self, n)))
    options = "--limit 2 --no-controls --layer stages.2.second"
    assert (
        run(f"analyze convattn:cifar10-small --images {images} -o {tmp_path / 'a'} {options}") == 0
    )
    first, *others = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"\w+: \d+ of \d+ heads are convolutions.*, on 2 images",
        first,
    )
    assert len(others) < 12
    assert not any("untrained" in line for line in others)
    assert HeadReport.load(tmp_path / "a" / "report.json").image_shape == (3, 32, 32)
    small = [
        np.array(Image.fromarray(one).resize((32, 32), Image.Resampling.BICUBIC, (4, 0, 44, 40)))
        for one in pixels(2)
    ]
    prepared = normalise(
        torch.from_numpy(np.stack(small)).movedim(-1, 1), CIFAR10_MEAN, CIFAR10_STD
    )
    assert seen.keys() == {0, 1}
    assert all(torch.equal(seen[number], prepared[number]) for number in seen)


def test_interrupted_analysis_leaves_nothing(images, tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convattn.lab.html_pages.distance_by_depth", interrupt)
    assert run(f"analyze {SOURCE} --images {images} -o {tmp_path / 'report'}") == 130
    assert capsys.readouterr().err == "convattn: interrupted\n"
    assert not (tmp_path / "report").exists()


def test_matplotlib_is_asked_for_first(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    assert run(f"analyze {SOURCE} --images {images} -o {tmp_path / 'report'}") == 2
    assert "matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_mistakes_in_images_are_told_on_one_line(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("no image")
    np.save(tmp_path / "grey.npy", np.zeros((3, 1, 32, 32), dtype=np.float32))
    for name, message in {
        "gone": "--images must be a folder or a file that exists, but is",
        "text.txt": r"--images must be a folder of pictures, a picture or a \.npy file",
        "grey.npy": "images must",
    }.items():
        assert run(f"analyze {SOURCE} --images {tmp_path / name} -o {tmp_path / 'out'}") == 2, name
        out, err = capsys.readouterr()
        assert re.search(message, err), (name, err)
        assert (out, err.count("\n")) == ("", 1)
        assert not (tmp_path / "out").exists()


def test_other_mistakes_are_told(images, made, tmp_path, capsys):
    folder = f"--images {images} -o {tmp_path / 'out'}"
    for arguments, message in {
        f"timm:resnet18 --random-weights {folder}": "attention",
        f"{SOURCE} --images {images} -o {made}": "--output must be new or empty",
        f"{SOURCE} {folder} --limit 0": "--limit: must be an integer of at least 1, but is '0'",
        f"{SOURCE} {folder} --layer x": "layers must be a pattern that matches attention layers",
        f"{SOURCE} {folder} --kernel-size 2": "--kernel-size must be odd",
        f"timm:vit_tiny_patch16_224 {folder}": "exactly one of --weights FILE, --pretrained and",
    }.items():
        assert run(f"analyze {arguments}") == 2
        assert message in capsys.readouterr().err
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
