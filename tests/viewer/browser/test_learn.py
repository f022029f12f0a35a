"""The tour in a browser: its steps, by mouse and by keyboard, and the way to Explore and back."""

from playwright.sync_api import expect

STEPS = 6


def step(page, number):
    return page.locator(f'[data-step="{number}"]')


def test_the_tour_goes_through_its_steps_and_back(opened, folder_page):
    page = opened(folder_page)
    page.get_by_role("tab", name="Learn").click()
    for number in range(1, STEPS):
        expect(step(page, number)).to_be_visible()
        page.get_by_role("button", name="Next").click()
    expect(step(page, STEPS)).to_be_visible()
    page.get_by_role("button", name="Back").click()
    expect(step(page, STEPS - 1)).to_be_visible()


def test_the_keyboard_is_enough(opened, folder_page):
    page = opened(folder_page)
    page.get_by_role("tab", name="Explore").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(step(page, 1)).to_be_visible()
    page.get_by_role("button", name="Next").focus()
    page.keyboard.press("Enter")
    expect(step(page, 2)).to_be_visible()


def test_the_address_brings_a_step_back(opened, server_page):
    page = opened(f"{server_page}/#view=learn&step=2")
    expect(step(page, 3)).to_be_visible()
    page.get_by_role("tab", name="Explore").click()
    expect(page.locator("button.map").first).to_be_visible()
    page.get_by_role("tab", name="Learn").click()
    expect(step(page, 3)).to_be_visible()


def test_it_fits_a_phone(opened, folder_page):
    for number in range(STEPS):
        page = opened(f"{folder_page}#view=learn&step={number}", width=360, height=740)
        expect(step(page, number + 1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, number + 1
