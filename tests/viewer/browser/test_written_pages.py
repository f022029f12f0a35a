"""The pages of `analyze` and of `convert` in a browser: on a phone, in the dark, and for everyone."""

import numpy as np
import pytest
from playwright.sync_api import expect
from tests.cli.command import run
from tests.viewer.browser.axe import complaints_by_day_and_night

from convattn import save_network
from convattn.models import AttentionNet


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The address of the page of an analysis."""
    folder = tmp_path_factory.mktemp("written")
    save_network(AttentionNet(width=8, depth=2, heads=9, ffn=8), folder / "network")
    np.save(folder / "two.npy", np.random.default_rng(0).random((2, 3, 16, 16), dtype=np.float32))
    network = f"{folder / 'network'} --images {folder / 'two.npy'}"
    assert run(f"analyze {network} --no-controls --view 1 -o {folder / 'report'}") == 0
    return (folder / "report" / "index.html").as_uri()


@pytest.fixture(scope="module")
def conversion(tmp_path_factory):
    """The address of the page of a conversion."""
    folder = tmp_path_factory.mktemp("written") / "conversion"
    network = "convattn:cifar10-small --limit 2"
    assert run(f"convert {network} --to conv -o {folder} --allow-difference") == 3
    return (folder / "index.html").as_uri()


@pytest.fixture(params=["report", "conversion"])
def written(request):
    """The address of each page."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_has_no_serious_fault_and_is_as_wide_as_the_screen(opened, written, width):
    page = opened(written, width=width, height=844)
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints_by_day_and_night(page) == []


def test_a_press_on_a_head_opens_it_on_the_interactive_page(opened, report):
    page = opened(report)
    page.get_by_role("link", name="Where head 4 of blocks.1.mixer looks").click()
    expect(page.get_by_role("heading", name="Layer 2, head 4")).to_be_visible()
    page.get_by_role("button", name="All controls").click()
    expect(page.get_by_role("table", name="Numbers of this head")).to_contain_text("position score")


def lightness(page, name):
    """The lightness of a colour of the body, from 0 to 255."""
    colour = page.evaluate(f"getComputedStyle(document.body).{name}")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_a_page_is_dark_where_the_system_is(opened, written):
    page = opened(written)
    assert lightness(page, "color") + 140 < lightness(page, "backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert lightness(page, "backgroundColor") + 140 < lightness(page, "color")


def test_the_report_answers_first_and_folds_the_rest(opened, report):
    page = opened(report, width=390, height=844)
    answer = page.locator(".answer")
    expect(answer).to_have_text(
        "18 of 18 heads are convolutions: the architecture does it, on 2 images (two.npy)."
    )
    assert answer.bounding_box()["y"] < 200
    expect(page.locator(".heads td")).to_have_count(18)
    expect(page.get_by_text("What this does not say")).to_be_visible()
    expect(page.locator("details > :not(summary)").first).to_be_hidden()


def test_a_conversion_shows_its_verdict_first_and_every_layer(opened, conversion):
    page = opened(conversion, width=390, height=844)
    expect(page.locator("h1")).to_have_text("cifar10-small as convolutions: different")
    expect(page.locator("tbody tr")).to_have_count(2 + 7)
