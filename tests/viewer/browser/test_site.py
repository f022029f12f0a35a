"""The site: it builds without a warning, its links resolve, and a browser shows it."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from matplotlib import pyplot as plt
from playwright.sync_api import expect
from tests.viewer.browser.axe import complaints_by_day_and_night

ROOT = Path(__file__).parents[3]
NOTEBOOKS_APART = "tutorials/cnn-to-attention.md", "tutorials/which-heads.md"
"""Notebooks that train: they run in this process, which has loaded torch, and the site's build leaves them out."""
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id"))
        link = found.get("href") if tag in ("a", "link") else found.get("src")
        if link and not urlsplit(link).scheme:
            self.links.append(link)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it, without what notebooks apart print."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-b", "html", "-nW", "--keep-going", "docs", str(folder)]
    environment = {**os.environ, "NOTEBOOKS_APART": " ".join(NOTEBOOKS_APART)}
    command = [sys.executable, *words]
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def lost_links(site):
    computed = {
        *site.glob("live/*.html"),
        *site.glob("gallery/*/view.html"),
    }  # their anchors are views
    pages = {page: Links(page) for page in {*site.rglob("*.html")} - computed}
    lost = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            known = pages[target].anchors if target in pages else None
            if not target.exists() or (known and unquote(parts.fragment) not in known):
                lost.append(f"{page.relative_to(site)}: {link}")
    return lost


def test_inner_links_resolve(site):
    assert lost_links(site) == []


def test_every_page_has_an_icon(site):
    """Without one a browser asks the server for /favicon.ico, which is not there."""
    for page in site.rglob("*.html"):
        assert re.search(r'rel="(shortcut )?icon"', page.read_text()), page


def test_a_lost_link_is_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<p id="here"></p><a href="#here"></a><a href="#gone"></a><a href="a.html"></a>'
    )
    assert lost_links(tmp_path) == ["index.html: #gone", "index.html: a.html"]


@pytest.mark.parametrize(
    "page",
    [
        "index.html",
        "tutorials/convolution-is-attention.html",
        "results/trained-heads.html",
        "gallery/index.html",
        "reference/api/layers.html",
    ],
)
def test_pages_fit_and_complain_of_nothing(page, address, opened):
    shown = opened(f"{address}/{page}", width=390)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints_by_day_and_night(shown) == []
    shown.set_viewport_size({"width": 1280, "height": 900})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1280
    if page == "index.html":
        expect(
            shown.frame_locator("iframe").get_by_role("heading", name="From a pixel to its output")
        ).to_be_visible()


@pytest.mark.parametrize("page", NOTEBOOKS_APART)
@pytest.mark.filterwarnings(
    "ignore:FigureCanvasAgg is non-interactive",
    "ignore:__array__ implementation:DeprecationWarning",
)
def test_a_notebook_apart_runs_and_its_assertions_hold(page):
    plt.switch_backend("agg")  # or windows would open where there is a screen
    cells = CELL.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert "assert" in "".join(cells)
    namespace = {"__name__": "notebook"}
    for number, code in enumerate(cells, start=1):
        exec(compile(code, f"{page}, cell {number}", "exec"), namespace)
    plt.close("all")


def test_search_finds_a_page(address, opened):
    shown = opened(f"{address}/search.html?q=certificate")
    expect(shown.locator("#search-results li a").first).to_be_visible()
