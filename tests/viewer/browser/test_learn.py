"""The tour in a browser: its steps, by mouse and by keyboard, and the way to Explore and back."""

import pytest
from playwright.sync_api import expect

STEPS, END, APPENDIX = 5, 6, (7, 8)
TO_THE_END = "window.scrollTo({top: document.documentElement.scrollHeight, behavior: 'instant'})"


def step(page, number):
    return page.locator(f'[data-step="{number}"]')


def test_the_tour_goes_through_its_steps_and_leads_to_the_network(opened, address):
    page = opened(address)
    for number in range(1, STEPS):
        expect(step(page, number)).to_be_visible()
        page.get_by_role("button", name="Next").click()
    expect(step(page, STEPS)).to_be_visible()
    page.get_by_role("button", name="Back").click()
    expect(step(page, STEPS - 1)).to_be_visible()
    for letter, number in zip("AB", APPENDIX, strict=True):
        page.get_by_role("button", name=f"Appendix {letter}").click()
        expect(step(page, number).locator(".learn-count")).to_have_text(f"Appendix {letter}")
    page.get_by_role("button", name="Trained transformers").click()
    expect(step(page, END)).to_be_visible()
    page.locator(".learn-moves").get_by_role("button", name="Explore").press("Enter")
    tab = page.get_by_role("tab", name="Explore")
    expect(tab).to_have_attribute("aria-selected", "true")
    expect(tab).to_be_focused()


def test_the_keyboard_is_enough_and_brings_the_step_of_the_address_back(opened, address):
    page = opened(f"{address}#view=learn&step=2")
    expect(step(page, 3)).to_be_visible()
    page.get_by_role("tab", name="Learn").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("button.map").first).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(step(page, 3)).to_be_visible()
    page.get_by_role("button", name="Next").focus()
    page.keyboard.press("Enter")
    expect(step(page, 4)).to_be_visible()


def test_a_link_that_names_no_view_opens_explore(opened, address):
    page = opened(f"{address}#layer=1")
    expect(page.locator('button.map[data-layer="1"][aria-pressed="true"]')).to_be_visible()


def test_a_link_is_followed_though_the_page_has_yet_to_write_its_own_address(opened, address):
    page = opened(f"{address}#view=learn&step=0")
    page.get_by_role("button", name="Step 2").click()
    page.evaluate("history.pushState(null, '', '#view=learn&step=4')")
    page.wait_for_timeout(600)  # a busy browser tells the page late
    page.evaluate("dispatchEvent(new HashChangeEvent('hashchange'))")
    expect(step(page, 5)).to_be_visible()
    page.wait_for_timeout(600)
    assert page.url.endswith("#view=learn&step=4")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (800, 740)])
def test_in_one_column_what_one_plays_with_is_in_sight(opened, address, width, height):
    page = opened(f"{address}#view=learn", width=width, height=height)
    for number in (*range(1, STEPS + 1), *APPENDIX):
        page.goto(f"{address}#view=learn&step={number - 1}")  # without loading it again
        expect(step(page, number)).to_be_visible()
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        assert_in_sight(page, number, width, height)


def assert_in_sight(page, number, width, height):
    """At the top, while one reads, and at the end of a step."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    texts = page.locator(".learn-text > p:not(.learn-count)")
    stage = page.locator(".learn-pair" if number <= STEPS else ".learn-parts > *").first
    first = stage.bounding_box()
    assert first["y"] < 0.55 * height
    if number in APPENDIX:
        assert first["y"] < texts.first.bounding_box()["y"], "the explanation comes after it"
        return
    numbers = page.locator(".learn-numbers").bounding_box()
    assert texts.first.bounding_box()["y"] < numbers["y"], "words come before their numbers"
    texts.get_by_text("Notice").scroll_into_view_if_needed()
    page.evaluate(TO_THE_END)
    assert page.evaluate("scrollY") > 0
    for part in (texts.first, texts.get_by_text("Notice"), page.locator(".learn-numbers")):
        part.evaluate("part => part.scrollIntoView({block: 'end'})")
        box = stage.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= part.bounding_box()["y"] + 1, (
            "it covers nothing that is read"
        )
        assert box["height"] <= 0.4 * height
    page.evaluate(TO_THE_END)
    control = page.locator(".learn-parts input").first
    control.focus()
    assert control.bounding_box()["y"] >= stage.bounding_box()["y"] + stage.bounding_box()["height"]


def test_a_wide_page_has_the_text_beside_what_one_plays_with(opened, address):
    page = opened(f"{address}#view=learn&step=0", width=1400)
    text, stage = (page.locator(name).bounding_box() for name in (".learn-text", ".learn-parts"))
    assert text["x"] + text["width"] < stage["x"]
    assert text["y"] == stage["y"]
