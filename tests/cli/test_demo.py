import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from convattn.cli import demo as demo_module
from convattn.cli import main
from convattn.cli.demo_conversion import filter_bank
from convattn.cli.demo_page import write_page
from convattn.cli.demo_record import Demonstration
from convattn.convert import load_layer
from convattn.errors import MissingDependencyError
from convattn.records import Certificate, RunRecord
from convattn.training import load_recipe
from convattn.training.threads import threads_given

FILES = [
    "attention/certificate.json",
    "attention/config.json",
    "attention/model.safetensors",
    "convolution/config.json",
    "convolution/model.safetensors",
    "demo.json",
    "hard-heads.png",
    "heads.png",
    "index.html",
    "run/README.md",
    "run/config.json",
    "run/heads.parquet",
    "run/metrics.jsonl",
    "run/model.safetensors",
    "run/recipe.toml",
    "run/record.json",
    "soft-heads.png",
]
THREADS = torch.get_num_threads()
TINY = {
    "model.width": "5",
    "model.depth": "1",
    "model.heads": "2",
    "model.ffn": "7",
    "training.epochs": "1",
    "training.batch_size": "240",
}


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


def contents(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A demo whose network is too small to learn anything."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo_module.demonstrate(folder, load_recipe("digits-quadratic", overrides=TINY), quiet=True)


def test_demo_leaves_what_later_commands_read(made, tmp_path, capsys):
    folder, shown = made
    assert contents(folder) == FILES
    assert Demonstration.load(folder / "demo.json") == shown
    assert RunRecord.load(folder / "run" / "record.json") == shown.run
    assert Certificate.load(folder / "attention" / "certificate.json") == shown.conversions[0].certificate
    assert torch.equal(load_layer(folder / "convolution").weight, filter_bank().weight)
    assert main(["convert", str(folder / "convolution"), "-o", str(tmp_path / "softer"), "--sharpness", "5"]) == 0


def test_hard_heads_are_exact_and_soft_ones_are_within_their_bound(made):
    _, shown = made
    hard, soft = shown.conversions
    assert hard.certificate.exact
    assert hard.exact_difference <= 2 * (hard.rounding + hard.unit)
    assert not soft.certificate.exact
    assert soft.certificate.passed
    assert 1000 * hard.exact_difference < soft.exact_difference
    assert soft.exact_difference <= soft.certificate.bound_per_unit + 2 * (soft.rounding + soft.unit)


def test_training_is_on_one_thread_and_others_get_theirs_back(made):
    _, shown = made
    assert shown.run.hardware["threads"] == str(threads_given() or 1)
    assert torch.get_num_threads() == THREADS


def test_network_that_learned_nothing_is_not_praised(made):
    folder, shown = made
    assert shown.run.results["test_accuracy"] < 0.96
    assert not shown.passed
    assert "FAILED: test accuracy" in shown.summary()
    assert "NOT REACHED" in Page((folder / "index.html").read_text(encoding="utf-8")).words


def test_page_stands_alone_and_can_be_read_aloud(made):
    folder, shown = made
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 3
    for attrs in images:
        assert attrs["src"].startswith("data:image/png;base64,")
        assert len(attrs["alt"]) > 40
    assert not [tag for tag, _ in page.tags if tag in {"script", "link", "iframe"}]
    assert ("html", {"lang": "en"}) in page.tags
    assert [tag for tag, _ in page.tags if re.fullmatch(r"h\d", tag)] == ["h1", "h2", "h2", "h2"]
    assert sum(tag == "caption" for tag, _ in page.tags) == sum(tag == "table" for tag, _ in page.tags) == 4
    for word in (f"{shown.run.results['test_accuracy']:.2%}", shown.run.command, shown.photograph, "CC BY 2.0"):
        assert word in page.words


def test_page_shows_signs_of_html_as_they_are(made, tmp_path):
    folder, shown = made
    words = """<i>Tom</i> & "Jerry's" &amp;"""
    shutil.copytree(folder, tmp_path / "copy")
    run = replace(shown.run, command=words, hardware={**shown.run.hardware, "processor": words})
    page = Page(write_page(replace(shown, photograph=words, run=run), tmp_path / "copy").read_text(encoding="utf-8"))
    assert page.words.count(words) == 3
    assert not [tag for tag, _ in page.tags if tag == "i"]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".png")])
def test_figures_are_wide_enough_for_a_page(made, name):
    with Image.open(made[0] / name) as image:
        assert image.width > 500


def test_command_numbers_its_folder_and_says_what_failed(made, tmp_path, monkeypatch, capsys):
    def converted(folder):
        """Gives the conversions of the demo that is there."""
        for name in FILES:
            if name.startswith(("attention", "convolution", "hard", "soft")):
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy(made[0] / name, folder / name)
        return made[1].conversions

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "show_conversions", converted)
    Path("demo").mkdir()
    Path("demo", "mine").write_text("precious")

    def short(folder, recipe, *, quiet):
        return honest(folder, load_recipe(recipe.name, overrides=TINY), quiet=quiet)

    honest = demo_module.demonstrate
    monkeypatch.setattr(demo_module, "demonstrate", short)
    assert main(["demo"]) == 1
    assert contents(tmp_path / "demo-2") == FILES
    assert Path("demo", "mine").read_text() == "precious"
    out, err = capsys.readouterr()
    assert err == ""
    assert "epoch 1: loss " in out
    assert "FAILED: test accuracy" in out
    assert "wrote demo-2; look at demo-2/index.html" in out


@pytest.mark.parametrize("error", [KeyboardInterrupt, MissingDependencyError("matplotlib", "train")])
def test_demo_that_stops_leaves_nothing(tmp_path, monkeypatch, capsys, error):
    def stop(folder, recipe, *, quiet):
        (folder / "half").write_text("half")
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "demonstrate", stop)
    assert main(["demo"]) == (130 if error is KeyboardInterrupt else 2)
    assert not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.slow
def test_full_demo_learns(tmp_path):
    command = Path(sys.executable).with_name("convattn")
    done = subprocess.run([command, "demo", "--json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = Demonstration.from_json(done.stdout)
    assert shown.passed
    assert shown.run.results["test_accuracy"] >= 0.96
    assert contents(tmp_path / "demo") == FILES
