"""The site: `make docs` builds it into build/site, and every warning stops it."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from docutils.nodes import Element, Node
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from convattn import __version__

ROOT = Path(__file__).parents[1]

project = "convattn"
release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "furo"
html_title = "convattn"
html_favicon = "favicon.svg"
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 6
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 300  # seconds for a cell, on a busy machine
nb_execution_raise_on_error = True
nb_execution_excludepatterns = os.environ.get("NOTEBOOKS_APART", "").split()  # what tests run elsewhere
nb_merge_streams = True  # what a cell prints is one block

autodoc_typehints = "none"
napoleon_attr_annotations = False
autodoc_member_order = "bysource"


def leave_links_out(app: Sphinx, name: str, source: list[str]) -> None:
    """Makes plain text of links to files of the repository that are no pages of the site."""
    place = Path(app.srcdir, name).parent

    def text(link: re.Match[str]) -> str:
        target = (place / link[2]).resolve()
        page = target.suffix in {".md", ".json", ".png", ".svg", ".jsonl"} and target.is_relative_to(app.srcdir)
        return link[0] if page or not target.exists() else link[1]

    source[0] = re.sub(r"(?<!!)\[([^][]*)\]\((?![a-z]+:)([^)\s#]+)(?:#[^)\s]*)?\)", text, source[0])


def find_error(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Finds what docstrings raise by its short name."""
    if node.get("reftype") != "exc" or "." in node["reftarget"]:
        return None
    python, homes = env.get_domain("py"), ("convattn.errors", "convattn.viewer")
    names = [f"{home}.{node['reftarget']}" for home in homes]
    found = (python.resolve_xref(env, node["refdoc"], app.builder, "exc", name, node, text) for name in names)
    return next(filter(None, found), None)


def let_boxes_scroll(_app: Sphinx, _name: str, _template: str, context: dict[str, Any], _tree: Node | None) -> None:
    """Lets the keyboard reach tables and code, which scroll where they are wider than the page."""
    if "body" in context:
        boxes = r'<(pre\b|div (?=class="table-wrapper))'
        context["body"] = re.sub(boxes, r'<\1 tabindex="0" ', context["body"])


def write_live_page(app: Sphinx, error: Exception | None) -> None:
    """Writes the interactive page that the front page shows, unless it is there."""
    page = Path(app.outdir) / "live" / "index.html"
    if error is None and app.builder.format == "html" and not page.exists():
        from convattn.cli.view import view

        page.parent.mkdir(exist_ok=True)
        view("convattn:cifar10-small", limit=6, output=page, json=True)


def copy_gallery(app: Sphinx, error: Exception | None) -> None:
    """Copies the gallery, a folder for each network, beside its index, and makes pages of its scenes."""
    if error is None and app.builder.format == "html":
        from convattn.viewer.page import write_page
        from convattn.viewer.scene import Scene

        for file in Path(app.srcdir, "gallery").glob("*/*"):
            copy = Path(app.outdir) / file.relative_to(app.srcdir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".safetensors":
                write_page(Scene.from_bytes(file.read_bytes()), copy.with_suffix(".html"))
            else:
                shutil.copyfile(file, copy)


def setup(app: Sphinx) -> None:
    """Lets the build write the interactive page, copy the gallery, and read pages that GitHub shows as well."""
    app.connect("source-read", leave_links_out)
    app.connect("missing-reference", find_error)
    app.connect("html-page-context", let_boxes_scroll)
    app.connect("build-finished", write_live_page)
    app.connect("build-finished", copy_gallery)
