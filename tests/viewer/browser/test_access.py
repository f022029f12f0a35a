"""The page for everyone: no serious complaint of axe-core, in light and dark, in both views, on a phone."""

import pytest
from playwright.sync_api import expect
from tests.viewer.browser.axe import SCHEMES, complaints_by_day_and_night

TOUR = [f"view=learn&step={step}" for step in range(9)]


@pytest.mark.parametrize("width", [360, 1400])
def test_explore_has_no_serious_fault(opened, address, width):
    page = opened(f"{address}#network=1&layer=1&head=1", width=width)
    expect(page.locator("button.map").first).to_be_visible()
    assert complaints_by_day_and_night(page) == []
    page.get_by_role("button", name="All controls").click()
    assert complaints_by_day_and_night(page) == []


def test_the_tour_has_no_serious_fault(opened, address):
    page = opened(f"{address}#{TOUR[0]}", width=800)
    for number, step in enumerate(TOUR):
        page.goto(f"{address}#{step}")  # without loading it again
        expect(page.locator(f'[data-step="{number + 1}"]')).to_be_visible()
        assert complaints_by_day_and_night(page) == []
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(UNINKED) == [], "words of a drawing in the default black"


UNINKED = """() => [...document.querySelectorAll(".learn text")]
  .filter((text) => getComputedStyle(text).fill === "rgb(0, 0, 0)").map(({ textContent }) => textContent)"""

CUT = """() => [...document.querySelectorAll("#convattn :not(svg *, .only-heard)")].filter((element) => {
  const { right, width } = element.getBoundingClientRect();
  if (!width || !element.checkVisibility()) return false;
  const hidden = getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return hidden || right > innerWidth;
}).map(({ className, textContent }) => `${className}: ${textContent}`)"""


def test_on_a_phone_nothing_is_cut(opened, address):
    page = opened(f"{address}#view=explore", width=320)
    page.get_by_role("button", name="All controls").click()
    for view in (*TOUR, "view=explore&network=0&layer=5", "view=explore&network=1&layer=1"):
        page.goto(f"{address}#{view}")
        shown = ".learn-step" if view in TOUR else "button.map"
        expect(page.locator(shown).first).to_be_visible()
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(100)
            assert page.evaluate(CUT) == [], f"{view}, {width} pixels"
    page.locator(".overview h2").evaluate(
        "title => title.style.cssText = 'width: 3em; overflow: hidden; white-space: nowrap'"
    )
    assert page.evaluate(CUT) != []


def test_the_check_finds_planted_faults(opened, address):
    page = opened(f"{address}#view=explore")
    expect(page.locator("button.map").first).to_be_visible()
    page.evaluate(PLANT)
    found = {one[:2] for one in complaints_by_day_and_night(page)}
    everywhere = {(scheme, name) for scheme in SCHEMES for name in ("button-name", "image-alt")}
    assert found == {*everywhere, ("dark", "color-contrast")}


PLANT = """() => {
  const planted = ["button", "img", "p"].map((tag) => document.createElement(tag));
  planted[2].textContent = "Grey on grey in the dark";
  planted[2].style.cssText = "color: light-dark(black, #333); background: light-dark(white, #222)";
  document.querySelector("main").append(...planted);
}"""
