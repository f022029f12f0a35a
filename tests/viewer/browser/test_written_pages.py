"""The pages of `demo` and `analyze` in a browser: on a phone, and in the dark."""

import pytest
from playwright.sync_api import expect
from tests.pretrained_cases import made_by_script

from convattn.cli import main
from convattn.lab.demonstration import demonstrate


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The addresses of both pages, by name."""
    place = tmp_path_factory.mktemp("written")
    made_by_script(place)
    (place / "demo").mkdir()
    demonstrate(place / "demo", place / "short", tell=lambda _: None)
    options = ["--limit", "2", "--no-controls"]
    assert main(["analyze", "convattn:cifar10-small", "-o", str(place / "report"), *options]) == 0
    return {name: (place / name / "index.html").as_uri() for name in ("demo", "report")}


@pytest.mark.parametrize("name", ["demo", "report"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_as_wide_as_the_screen(opened, pages, name, width):
    page = opened(pages[name], width=width, height=844)
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def lightness(page, name):
    """The lightness of a colour of the body, from 0 to 255."""
    colour = page.evaluate(f"getComputedStyle(document.body).{name}")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


@pytest.mark.parametrize("name", ["demo", "report"])
def test_a_page_is_dark_where_the_system_is(opened, pages, name):
    light, dark = (opened(pages[name], dark=dark) for dark in (False, True))
    assert lightness(light, "color") + 140 < lightness(light, "backgroundColor")
    assert lightness(dark, "backgroundColor") + 140 < lightness(dark, "color")


def test_the_report_answers_first_and_folds_the_rest(opened, pages):
    page = opened(pages["report"], width=390, height=844)
    answer = page.locator(".answer")
    expect(answer).to_have_text(
        "54 of 54 heads are convolutions, on 2 images (the test set of CIFAR-10)."
    )
    assert answer.bounding_box()["y"] < 200
    expect(page.locator(".heads td")).to_have_count(54)
    expect(page.get_by_text("What this does not say")).to_be_visible()
    expect(page.locator("details > :not(summary)").first).to_be_hidden()
