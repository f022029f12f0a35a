"""A real browser for the tests of the page, what the page shows, and what every test of it must hold to."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import timm
import torch
from playwright.sync_api import Error, expect, sync_playwright
from tests.machine import do_without
from tests.viewer.browser.reading import PATIENCE

from convattn import load_network
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, load_samples, normalise
from convattn.viewer import Exhibit, Scene, build_scene
from convattn.viewer.page import write_page

ROOT = Path(__file__).parents[3]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=1000 * PATIENCE)
NEAR = {"127.0.0.1", "localhost", "[::1]", "::1"}


@pytest.fixture(scope="session")
def browser():
    """A browser that a user would have; if there is none that starts, its tests are left out, but for CI."""
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    search = subprocess.run(
        [ROOT / "scripts/browser"], capture_output=True, text=True, check=False, env=environment
    )
    if search.returncode:
        do_without(search.stderr.strip())
    path = search.stdout.strip()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        except Error as error:
            do_without(f"{path} does not start: {error}")
        yield browser
        browser.close()


def pytest_collection_modifyitems(items):
    """Puts the site, then these tests before all others.

    So the process that begins with them opens the one browser and builds the one site, while another does the rest and
    takes from the end of what is left.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: (item.path.name != "test_site.py", item.path.parent != here))


class Note(NamedTuple):
    """A request that would have left this machine, or an error in a console."""

    text: str  # Address, or message
    frame: str  # Address of the frame that made the request, or of the script that the error comes from


class Watched:
    """What happened in a page that must not happen."""

    def __init__(self):
        self.outside: list[Note] = []
        self.errors: list[Note] = []

    def watch(self, context):
        """Stops and notes requests that would leave this machine."""

        def stop(route):
            self.outside.append(Note(route.request.url, route.request.frame.url))
            route.abort()

        context.route(is_outside, stop)

    def listen(self, page):
        """Notes errors."""

        def note(message):
            if message.type == "error":
                self.errors.append(Note(message.text, message.location["url"]))

        page.on("console", note)
        page.on("pageerror", lambda error: self.errors.append(Note(f"{error}\n{error.stack}", "")))


def is_outside(url):
    """Tells whether a request would leave this machine."""
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob", "about") and parts.hostname not in NEAR


@contextmanager
def opening(browser):
    """Opens pages, each in a profile of its own; afterwards no error may be in a console, and no request have left."""
    watched, contexts = Watched(), []

    def open_page(url, *, width=1200, height=900, dark=False, calm=True, **options):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if calm else "no-preference",
            accept_downloads=True,
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        watched.watch(context)
        page = context.new_page()
        watched.listen(page)
        page.goto(url)
        return page

    open_page.watched = watched
    yield open_page
    for context in contexts:
        context.close()
    assert watched.outside == []
    assert watched.errors == []


@pytest.fixture
def opened(browser):
    """Opens pages for a test."""
    with opening(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def opened_once(browser):
    """Opens pages that the tests of a file share."""
    with opening(browser) as open_page:
        yield open_page


@pytest.fixture(scope="session")
def exhibits():
    """The trained network of the package, and a small vision transformer with a class token, on two images."""
    images = normalise(load_samples().split.images[:2], CIFAR10_MEAN, CIFAR10_STD)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2)
    shared = {"mean": CIFAR10_MEAN, "std": CIFAR10_STD}
    return [
        Exhibit(load_network("convattn:cifar10-small"), images, name="trained", **shared),
        Exhibit(vit.eval(), images, name="transformer", **shared),
    ]


class Shown(NamedTuple):
    """What the page shows."""

    exhibits: list
    scene: Scene


@pytest.fixture(scope="session")
def shown(exhibits):
    return Shown(exhibits, build_scene(exhibits, title="A page"))


@pytest.fixture(scope="session")
def address(shown, tmp_path_factory):
    """The address of the page."""
    return write_page(shown.scene, tmp_path_factory.mktemp("pages") / "page.html").as_uri()
