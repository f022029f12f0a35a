"""The page for everyone: no serious complaint of axe-core, in light and dark, in both views, on a phone."""

import pytest
from playwright.sync_api import expect
from tests.viewer.browser.axe import complaints

TOUR = [f"view=learn&step={step}" for step in range(7)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_explore_has_no_serious_fault(opened, address, dark, width):
    page = opened(f"{address}#network=1&layer=1&head=1", dark=dark, width=width)
    expect(page.locator("button.map").first).to_be_visible()
    assert complaints(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_tour_has_no_serious_fault(opened, address, dark):
    page = opened(f"{address}#{TOUR[0]}", dark=dark, width=800)
    for number, step in enumerate(TOUR):
        page.goto(f"{address}#{step}")  # without loading it again
        expect(page.locator(f'[data-step="{number + 1}"]')).to_be_visible()
        assert complaints(page) == []


def test_the_check_finds_planted_faults(opened, address):
    page = opened(f"{address}#view=explore")
    expect(page.locator("button.map").first).to_be_visible()
    page.evaluate(
        "document.querySelector('main').append(...['button', 'img'].map((tag) => document.createElement(tag)))"
    )
    assert {"button-name", "image-alt"} <= {one[0] for one in complaints(page)}
