"""The page for everyone: no serious complaint of axe-core, in light and dark, in both views, on a phone."""

import pytest
from playwright.sync_api import expect
from tests.viewer.browser.axe import complaints

TOUR = [f"view=learn&step={step}" for step in range(9)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_explore_has_no_serious_fault(opened, address, dark, width):
    page = opened(f"{address}#network=1&layer=1&head=1", dark=dark, width=width)
    expect(page.locator("button.map").first).to_be_visible()
    assert complaints(page) == []
    page.get_by_role("button", name="All controls").click()
    assert complaints(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_tour_has_no_serious_fault(opened, address, dark):
    page = opened(f"{address}#{TOUR[0]}", dark=dark, width=800)
    for number, step in enumerate(TOUR):
        page.goto(f"{address}#{step}")  # without loading it again
        expect(page.locator(f'[data-step="{number + 1}"]')).to_be_visible()
        assert complaints(page) == []
        assert page.evaluate(UNINKED) == [], "words of a drawing in the default black"


UNINKED = """() => [...document.querySelectorAll(".learn text")]
  .filter((text) => getComputedStyle(text).fill === "rgb(0, 0, 0)").map(({ textContent }) => textContent)"""

CUT = """() => [...document.querySelectorAll("#convattn :not(svg *, .only-heard)")].filter((element) => {
  const { right, width } = element.getBoundingClientRect();
  if (!width || !element.checkVisibility()) return false;
  const hidden = getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return hidden || right > innerWidth;
}).map(({ className, textContent }) => `${className}: ${textContent}`)"""


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_nothing_is_cut(opened, address, width):
    page = opened(f"{address}#view=explore", width=width)
    page.get_by_role("button", name="All controls").click()
    for view in (*TOUR, "view=explore&network=0&layer=5", "view=explore&network=1&layer=1"):
        page.goto(f"{address}#{view}")
        shown = ".learn-step" if view in TOUR else "button.map"
        expect(page.locator(shown).first).to_be_visible()
        page.wait_for_timeout(100)
        assert page.evaluate(CUT) == [], view
    page.locator(".overview h2").evaluate(
        "title => title.style.cssText = 'width: 3em; overflow: hidden; white-space: nowrap'"
    )
    assert page.evaluate(CUT) != []


def test_the_check_finds_planted_faults(opened, address):
    page = opened(f"{address}#view=explore")
    expect(page.locator("button.map").first).to_be_visible()
    page.evaluate(
        "document.querySelector('main').append(...['button', 'img'].map((tag) => document.createElement(tag)))"
    )
    assert {"button-name", "image-alt"} <= {one[0] for one in complaints(page)}
