import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.pretrained_cases import made_by_script

from convattn import load_network
from convattn.cli import main
from convattn.cli.demo import _where_next
from convattn.convert import load_layer
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.errors import MissingDependencyError
from convattn.lab import demonstration as demo_module
from convattn.lab.demonstration import (
    KERNELS,
    Demonstration,
    NetworkConversion,
    demonstrate,
    filter_bank,
)
from convattn.lab.html_pages import write_html
from convattn.layers import RelativeAttention2d
from convattn.networks.pretrained import pretrained_card

FILES = [
    "as-convolutions/README.md",
    "as-convolutions/certificate.json",
    "as-convolutions/config.json",
    "as-convolutions/model.safetensors",
    "attention/certificate.json",
    "attention/config.json",
    "attention/model.safetensors",
    "convolution/config.json",
    "convolution/model.safetensors",
    "demo.json",
    "hard-heads.png",
    "heads.png",
    "images.png",
    "index.html",
    "soft-heads.png",
    "view/index.html",
    "view/scene.safetensors",
]


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
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a network too small and too shortly trained to have learned anything."""
    place = tmp_path_factory.mktemp("trained")
    made_by_script(place)
    return place / "short"


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, demonstrate(folder, trained, tell=lambda _: None)


def test_demo_leaves_what_later_commands_read(made, tmp_path, capsys):
    folder, shown = made
    assert contents(folder) == FILES
    assert Demonstration.load(folder / "demo.json") == shown
    assert (
        Certificate.load(folder / "attention" / "certificate.json")
        == shown.conversions[0].certificate
    )
    saved = NetworkCertificate.load(folder / "as-convolutions" / "certificate.json")
    assert saved == shown.network.conversions[0].certificate
    assert not any(
        isinstance(part, RelativeAttention2d)
        for part in load_network(folder / "as-convolutions").modules()
    )
    assert torch.equal(load_layer(folder / "convolution").weight, filter_bank().weight)
    assert (
        main(
            [
                "convert",
                str(folder / "convolution"),
                "-o",
                str(tmp_path / "softer"),
                "--sharpness",
                "5",
            ]
        )
        == 3
    )


def test_commands_to_try_hold_for_a_folder_with_a_space_in_its_name():
    lines = [
        shlex.split(line)
        for line in _where_next(Path("to see/my demo")).splitlines()
        if "convattn con" in line
    ]
    assert [words[2] for words in lines] == ["to see/my demo/convolution", "convattn:cifar10-small"]
    assert [words[words.index("-o") + 1] for words in lines] == ["my demo-softer", "my demo-narrow"]


def test_hard_heads_are_exact_and_soft_ones_are_within_their_bound(made):
    _, shown = made
    hard, soft = shown.conversions
    assert hard.certificate.exact
    assert hard.exact_difference <= 2 * (hard.rounding + hard.unit)
    assert not soft.certificate.exact
    assert (hard.certificate.verdict, soft.certificate.verdict) == ("exact", "different")
    assert 1000 * hard.exact_difference < soft.exact_difference
    assert soft.exact_difference <= soft.certificate.bound_per_unit + 2 * (
        soft.rounding + soft.unit
    )


def test_trained_network_is_converted_both_ways(made):
    network = made[1].network
    assert tuple(item.kernel for item in network.conversions) == KERNELS
    for item in network.conversions:
        assert item.certificate.top1_total == len(network.seen) == 20
        assert item.certificate.images == "20 test images of CIFAR-10"
        sides = {taps for layer in item.certificate.layers for taps in layer.kernel_size}
        assert item.kernel is None or sides == {item.kernel}
        assert item.certificate.accuracy_before == network.right / 20
    cut = {
        item.kernel: max(layer.leak for layer in item.certificate.layers)
        for item in network.conversions
    }
    assert cut[3] > cut[5] > cut[7] >= cut[None]
    assert network.back.exact
    assert network.back.verdict == "exact"
    verdicts = {item.kernel: item.certificate.verdict for item in network.conversions}
    assert verdicts[3] == "different"
    assert set(verdicts.values()) <= {"close", "different"}


def test_windows_are_worded(made):
    found = made[1].network.conversions[0].certificate
    narrow, wide = (replace(found.layers[0], kernel_size=(side, side)) for side in (3, 7))
    one, several = (
        NetworkConversion(None, replace(found, layers=layers))
        for layers in ((wide,), (wide, narrow))
    )
    assert (one.words, several.words) == ("as needed, 7 × 7", "as needed, 3 × 3 to 7 × 7")
    assert replace(one, kernel=5).words == "5 × 5"


def test_demo_takes_one_thread_and_gives_the_others_back(monkeypatch, tmp_path):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def stop(*_, **__):
        raise RuntimeError(f"on {torch.get_num_threads()} of them")

    monkeypatch.setattr(demo_module, "demonstrate", stop)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(RuntimeError, match="on 1 of them"):
            main(["demo", "-o", str(tmp_path / "demo")])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_network_that_is_not_as_on_its_card_is_told(made, tmp_path):
    folder, shown = made
    assert shown.passed
    words = Page((folder / "index.html").read_text(encoding="utf-8")).words
    assert "as its card says" in words
    assert "NOT what" not in words
    card = replace(shown.network.card, sample_classes=shown.network.seen[::-1])
    other = replace(shown, network=replace(shown.network, card=card), passed=False)
    assert not other.network.as_on_card
    assert "NOT what its card says" in other.summary()
    shutil.copytree(folder, tmp_path / "copy")
    assert (
        "NOT what its card says"
        in Page(
            write_html("demo_page.html", tmp_path / "copy", shown=other).read_text("utf-8")
        ).words
    )


def test_page_stands_alone_and_can_be_read_aloud(made):
    folder, shown = made
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 4
    for attrs in images:
        assert attrs["src"].startswith("data:image/png;base64,")
        assert len(attrs["alt"]) > 40
    assert not [tag for tag, _ in page.tags if tag in {"script", "link", "iframe"}]
    assert ("html", {"lang": "en"}) in page.tags
    assert [tag for tag, _ in page.tags if re.fullmatch(r"h\d", tag)] == ["h1", "h2", "h2", "h2"]
    assert (
        sum(tag == "caption" for tag, _ in page.tags)
        == sum(tag == "table" for tag, _ in page.tags)
        == 1
    )
    assert "roundings" not in page.words
    assert not re.search(r"\de[+-]\d|Conv2d", page.words), "verdicts in words and plain numbers"
    for item in shown.conversions:
        assert f": {item.certificate.verdict}" in page.words
    card = shown.network.card
    for word in (
        f"{card.accuracy:.2%}",
        card.run.command,
        shown.photograph,
        "CC BY 2.0",
        shown.network.credit,
    ):
        assert word in page.words
    assert ("code", {}) in page.tags
    for item in shown.network.conversions:
        assert item.words in page.words


def test_page_shows_signs_of_html_as_they_are(made, tmp_path):
    folder, shown = made
    words = """<i>Tom</i> & "Jerry's" &amp;"""
    shutil.copytree(folder, tmp_path / "copy")
    run = shown.network.card.run
    run = replace(run, command=words, hardware={**run.hardware, "processor": words})
    network = replace(shown.network, card=replace(shown.network.card, run=run))
    other = replace(shown, photograph=words, network=network)
    page = Page(write_html("demo_page.html", tmp_path / "copy", shown=other).read_text("utf-8"))
    assert page.words.count(words) == 3
    assert not [tag for tag, _ in page.tags if tag == "i"]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".png")])
def test_figures_are_wide_enough_for_a_page(made, name):
    with Image.open(made[0] / name) as image:
        assert image.width > 500


def test_command_numbers_its_folder_and_says_that_it_failed(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo", "mine").write_text("precious")

    def short(folder, network, *, tell):
        assert network.name == pretrained_card(network.name).name
        shown = replace(Demonstration.load(made[0] / "demo.json"), passed=False)
        shutil.copytree(made[0], folder, dirs_exist_ok=True)
        return shown

    monkeypatch.setattr(demo_module, "demonstrate", short)
    assert main(["demo"]) == 1
    assert contents(tmp_path / "demo-2") == FILES
    assert Path("demo", "mine").read_text() == "precious"
    out, err = capsys.readouterr()
    assert err == ""
    assert "trained network    " in out
    assert (
        "wrote demo-2; look at demo-2/index.html, and touch the heads in demo-2/view/index.html"
        in out
    )


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, MissingDependencyError("matplotlib", "train")]
)
def test_demo_that_stops_leaves_nothing(tmp_path, monkeypatch, capsys, error):
    def stop(folder, network, *, tell):
        (folder / "half").write_text("half")
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "demonstrate", stop)
    assert main(["demo"]) == (130 if error is KeyboardInterrupt else 2)
    assert not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.slow
def test_full_demo_passes_with_the_network_of_the_package(tmp_path):
    command = Path(sys.executable).with_name("convattn")
    done = subprocess.run(
        [command, "demo", "--json"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = Demonstration.from_json(done.stdout)
    assert shown.passed
    assert shown.network.card == pretrained_card(shown.network.card.name)
    assert contents(tmp_path / "demo") == FILES


def test_all_missing_packages_are_named_before_anything_is_made(monkeypatch, tmp_path, capsys):
    for module in ("matplotlib", "jinja2", "sklearn"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "convattn: this needs matplotlib, jinja2, scikit-learn, which are not installed; run: pip install"
        ' "convattn[train]"\n'
    )
    assert not (tmp_path / "demo").exists()
