"""The pages of the gallery: small, without weights, asking for nothing, and with their source and licence."""

import json
import re

from convattn.viewer.page import page_html
from convattn.viewer.scene import Scene
from evidence.gallery.__main__ import GALLERY, NO_WEIGHTS, ROUNDED, credit, source_of
from evidence.results import ROOT
from evidence.trained_heads.page import run

OUTSIDE = re.compile(
    r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]*https?:|url\(["']?(?!data:)[\w/]|fetch\(|import\("""
)


SCENES = [*GALLERY.glob("*/view.safetensors")]


def test_pages_are_small():
    sizes = [page.stat().st_size for page in GALLERY.rglob("*") if page.is_file()]
    assert max(sizes) <= 2_000_000
    assert sum(sizes) <= 6_500_000


def test_the_record_has_the_sizes():
    pages = json.loads((ROOT / "evidence/gallery/gallery.json").read_text(encoding="utf-8"))[
        "pages"
    ]
    for name, page in pages.items():
        files = [file for file in (GALLERY / name).iterdir() if file.suffix != ".png"]
        sizes = {file.name: file.stat().st_size for file in files}
        assert sizes == page["bytes"], name


def test_pages_name_their_source_and_ask_for_nothing():
    pages = [*GALLERY.glob("*/index.html"), *SCENES]
    assert SCENES
    for page in pages:
        scene = Scene.from_bytes(page.read_bytes()) if page in SCENES else None
        text = page_html(scene) if scene else page.read_text(encoding="utf-8")
        assert OUTSIDE.search(text) is None, page
        if scene:
            text = scene.header["networks"][0]["note"]
            assert ROUNDED in text, page
            assert credit() in text, page
        for words in (source_of(run()[page.parent.name]), NO_WEIGHTS):
            assert words in text, (page, words)


def test_interactive_pages_hold_maps_and_pictures_alone():
    for page in SCENES:
        scene = Scene.from_bytes(page.read_bytes())
        (network,) = scene.header["networks"]
        assert network["program"] is None, page
        for layer in network["layers"]:
            assert layer["attention"]["kind"] == "maps", page
            assert layer["attention"]["position"] is None, page
        for name, tensor in scene.tensors.items():
            scales = re.fullmatch(r"maps/\d+/\d+/both/(\d+|mean)/(scales|lows)", name)
            assert scales or not tensor.is_floating_point(), (page, name)


def test_what_asks_outside_is_found():
    for text in ('<img src="https://a/b.png">', "<link href=https://a>", "url(//a)", 'fetch("a")'):
        assert OUTSIDE.search(text), text
