"""The pages of the gallery: small, without weights, asking for nothing, and with their source and licence."""

import base64
import json
import re

from safetensors.torch import load

from evidence.gallery.__main__ import GALLERY, NO_WEIGHTS, ROUNDED, credit, source_of
from evidence.results import ROOT
from evidence.trained_heads.page import run

OUTSIDE = re.compile(
    r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]*https?:|url\(["']?(?!data:)[\w/]|fetch\(|import\("""
)


def test_pages_are_small():
    sizes = [page.stat().st_size for page in GALLERY.rglob("*") if page.is_file()]
    assert max(sizes) <= 1_500_000
    assert sum(sizes) <= 4_000_000


def test_the_record_has_the_sizes():
    pages = json.loads((ROOT / "evidence/gallery/gallery.json").read_text(encoding="utf-8"))[
        "pages"
    ]
    for name, page in pages.items():
        sizes = {file.name: file.stat().st_size for file in (GALLERY / name).glob("*.html")}
        assert sizes == page["bytes"], name


def test_pages_name_their_source_and_ask_for_nothing():
    pages = [*GALLERY.glob("*/*.html")]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert OUTSIDE.search(text) is None, page
        if page.name == "view.html":
            text = scene_of(text)[0]["networks"][0]["note"]
            assert ROUNDED in text, page
            assert credit(["flower.jpg"]) in text, page
        for words in (source_of(run()[page.parent.name]), NO_WEIGHTS):
            assert words in text, (page, words)


def scene_of(text):
    """Reads the header and the tensors of the scene in a page."""
    content = base64.b64decode(re.search(r'id="convattn-scene">([^<]*)<', text)[1])
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    return json.loads(metadata["convattn.scene"]), load(content)


def test_interactive_pages_hold_maps_and_pictures_alone():
    pages = [*GALLERY.glob("*/view.html")]
    assert pages
    for page in pages:
        header, tensors = scene_of(page.read_text(encoding="utf-8"))
        (network,) = header["networks"]
        assert network["program"] is None, page
        for layer in network["layers"]:
            assert layer["attention"]["kind"] == "maps", page
            assert layer["attention"]["position"] is None, page
        for name, tensor in tensors.items():
            scales = re.fullmatch(r"maps/\d+/\d+/both/\d+/(scales|lows)", name)
            assert scales or not tensor.is_floating_point(), (page, name)


def test_what_asks_outside_is_found():
    for text in ('<img src="https://a/b.png">', "<link href=https://a>", "url(//a)", 'fetch("a")'):
        assert OUTSIDE.search(text), text
