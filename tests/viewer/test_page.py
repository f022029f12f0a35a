"""The joined module and the page: one file, small, that asks for nothing."""

import base64
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
import torch
from tests.viewer.node import run_node

from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, Scene, build_scene, write_page
from convattn.viewer import page as module_file
from convattn.viewer.page import _stripped, joined_module, page_html

LARGEST_MODULE = 153_000
TOP_LEVEL = re.compile(
    r"^(?:export )?(?:async function\*?|function\*?|const|let|class) ([\w$]+|[{\[])", re.MULTILINE
)
FILES = resources.files("convattn.viewer") / "static" / "js"


def _files() -> list[Path]:
    return sorted(Path(str(FILES)).rglob("*.js"))


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Joins files written by a test."""

    def join(**texts: str) -> str:
        (tmp_path / "static/js").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "static/js" / f"{name}.js").write_text(text)
        monkeypatch.setattr(module_file.resources, "files", lambda _: tmp_path)
        return joined_module("main.js")

    return join


def test_the_module_is_small():
    size = len(joined_module().encode())
    assert size <= LARGEST_MODULE, f"{size:,} bytes"


def test_the_module_parses(tmp_path):
    (tmp_path / "module.mjs").write_text(joined_module())
    run_node("parse.js", tmp_path / "module.mjs")


@pytest.mark.parametrize("planted", ["", 'say(/ \\d/, "a , b");\n'], ids=["as it is", "a fault"])
def test_the_module_without_spaces_is_the_same(monkeypatch, tmp_path, planted):
    """A space within an expression for texts is what joining would lose."""
    texts = []
    for pattern in (module_file._TEXT_OR_SIGN, re.compile(r"(.)()", re.DOTALL)):
        monkeypatch.setattr(module_file, "_TEXT_OR_SIGN", pattern)
        texts.append(joined_module() + _stripped(planted))
    for name, text in zip(("one.mjs", "other.mjs"), texts, strict=True):
        (tmp_path / name).write_text(text)
    same = run_node("same.js", tmp_path / "one.mjs", tmp_path / "other.mjs")
    assert same == str(not planted).lower()


def joining_faults(files: dict[str, str]) -> list[str]:
    """Says what keeps files from being joined: names that two declare, and forms of import that are left over."""
    faults, owners = [], {}
    for name, text in files.items():
        left_over = re.findall(r"^(?:import|export)\b.*", _stripped(text), re.MULTILINE)
        faults += [f"{name}: cannot join {left}" for left in left_over]
        faults += [
            f"{name} renames what it imports"
            for _ in re.findall(r"^import \{.* as .*\}", text, re.MULTILINE)
        ]
        for declared in TOP_LEVEL.findall(text):
            if declared in "{[":
                faults.append(f"{name} takes apart a value outside of any block")
            if owners.setdefault(declared, name) != name:
                faults.append(f"{name} and {owners[declared]} both declare {declared}")
    return faults


def test_all_files_can_be_joined():
    """Also those that no page joins together today."""
    assert joining_faults({file.name: file.read_text() for file in _files()}) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('import { a } from "./one.js";\nconst one = 1;\n', "both declare one"),
        ('import { one as a } from "./one.js";\n', "renames what it imports"),
        ('import * as a from "./one.js";\n', "cannot join"),
        ('export * from "./one.js";\n', "cannot join"),
        ("const { a } = b;\n", "takes apart a value"),
    ],
)
def test_what_cannot_be_joined_is_seen(text, fault):
    (found,) = joining_faults({"one.js": "export const one = 1;\n", "main.js": text})
    assert fault in found


def test_no_text_goes_over_the_end_of_a_line():
    """Or joining would take the indentation out of it."""
    for file in _files():
        lines = [line.strip() for line in file.read_text().splitlines()]
        code = [line for line in lines if not line.startswith(("//", "/*", "*"))]
        assert [line for line in code if line.count("`") % 2] == [], file.name
        nested = [line for line in code if re.search(r"`[^`]*\$\{[^}]*`", line)]
        assert nested == [], f"{file.name}: joining would change a template within another"


def test_files_come_after_what_they_import(made):
    imports = 'import { one } from "./one.js";\nimport { two } from "./two.js";\n'
    main = f"{imports}\nexport const main = one + two;\n"
    two = (
        "/**\n * A comment.\n */\nexport function two() {\n  // another\n  return one; // last\n}\n"
    )
    text = made(
        main=main, one="export const one = 1;\n", two=f'import {{ one }} from "./one.js";\n\n{two}'
    )
    assert text == "const one=1;\nfunction two(){return one}\nconst main=one+two;\n"


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing(tmp_path):
    scene = build_scene(
        Exhibit(
            RelativeAttention2d(3, 4, num_heads=2, encoding="quadratic"), torch.rand(1, 3, 5, 7)
        ),
        title="<b>{{style}}",
    )
    page = write_page(scene, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    asking = ("src", "srcset", "action", "data", "poster")
    for tag, attributes in _Tags(text).found:
        assert not set(asking) & set(attributes), tag
        if tag != "a":  # a link asks for nothing until a reader opens it
            assert (attributes.get("href") or "data:").startswith("data:")
        assert tag not in ("iframe", "object", "embed", "base")
    assert "<title>&lt;b&gt;{{style}}</title>" in text
    assert "url(" not in text.replace("url(#", "")
    inside = re.search(r'id="convattn-scene">([^<]*)<', text)
    assert inside
    assert base64.b64decode(inside[1]) == scene.to_bytes()
    assert "default-src 'none'" in text


def test_a_page_is_written_into_a_folder_that_is_there(tmp_path):
    with pytest.raises(ArgumentError, match="path must be a file in a folder that exists"):
        write_page(Scene({"title": "none"}, {}), tmp_path / "none" / "page.html")


def test_every_step_of_the_tour_has_texts():
    names = [
        attributes["data-tour"]
        for tag, attributes in _Tags(page_html(Scene({"title": "tour"}, {}))).found
        if tag == "template" and attributes["data-name"]
    ]
    assert names[5] == "measured", "six steps, and an appendix after them"
    names.remove("tasks")
    assert {f"step-{name}.js" for name in names} == {
        file.name for file in _files() if file.match("step-*.js")
    }


def test_a_title_that_is_no_text_is_written():
    assert "<title>runs/?</title>" in page_html(Scene({"title": "runs/\udcff"}, {}))
