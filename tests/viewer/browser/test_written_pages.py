"""The page of `analyze` in a browser: on a phone, and in the dark."""

import pytest
from playwright.sync_api import expect
from tests.cli.command import run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The address of the page."""
    folder = tmp_path_factory.mktemp("written") / "report"
    assert run(f"analyze convattn:cifar10-small --limit 2 --no-controls -o {folder}") == 0
    return (folder / "index.html").as_uri()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_as_wide_as_the_screen(opened, report, width):
    page = opened(report, width=width, height=844)
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def lightness(page, name):
    """The lightness of a colour of the body, from 0 to 255."""
    colour = page.evaluate(f"getComputedStyle(document.body).{name}")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_a_page_is_dark_where_the_system_is(opened, report):
    light, dark = (opened(report, dark=dark) for dark in (False, True))
    assert lightness(light, "color") + 140 < lightness(light, "backgroundColor")
    assert lightness(dark, "backgroundColor") + 140 < lightness(dark, "color")


def test_the_report_answers_first_and_folds_the_rest(opened, report):
    page = opened(report, width=390, height=844)
    answer = page.locator(".answer")
    expect(answer).to_have_text(
        "54 of 54 heads are convolutions: the architecture does it, on 2 images (the test set of CIFAR-10)."
    )
    assert answer.bounding_box()["y"] < 200
    expect(page.locator(".heads td")).to_have_count(54)
    expect(page.get_by_text("What this does not say")).to_be_visible()
    expect(page.locator("details > :not(summary)").first).to_be_hidden()
