"""What can be touched in the tour: by mouse and keyboard, with the numbers that must follow."""

import re

import pytest
from playwright.sync_api import expect

EXACT = "0, exactly"


@pytest.fixture
def step(opened, address):
    """Opens a step of the tour; 7 and 8 are its appendix."""

    def open_step(number):
        page = opened(f"{address}#view=learn&step={number - 1}")
        expect(page.locator(f'[data-step="{number}"]')).to_be_visible()
        return page

    return open_step


def number(page, name):
    return page.locator("dl > div", has_text=name).locator("dd")


def choose(page, group, word):
    choices = page.get_by_role("group", name=group, exact=True)
    choices.get_by_label(word, exact=True).check(force=True)


def slide(page, name, value):
    page.get_by_role("slider", name=name).fill(value)


def test_a_head_is_moved_by_mouse_and_keys_and_put_back(step):
    page = step(2)
    difference = number(page, "Largest difference")
    expect(difference).to_have_text(EXACT)
    box = page.locator(".learn-touch svg").bounding_box()
    cell = box["width"] / 5

    def centre(row, col):
        return box["x"] + (col + 0.5) * cell, box["y"] + (row + 0.5) * cell

    page.mouse.move(*centre(1, 3))
    page.mouse.down()
    page.mouse.move(*centre(0, 4), steps=3)
    page.mouse.up()
    expect(page.get_by_role("button", name="Head 3: offset (−2, +2)")).to_be_visible()
    expect(difference).not_to_have_text(EXACT)
    page.get_by_role("button", name="Put the heads back").click()
    expect(difference).to_have_text(EXACT)
    page.get_by_role("button", name="Head 1:").focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("button", name="Head 1: offset (−2, −1)")).to_be_visible()
    expect(difference).not_to_have_text(EXACT)
    page.keyboard.press("ArrowDown")
    expect(difference).to_have_text(EXACT)


def test_sharp_heads_leave_rounding_only_and_centres_outside_have_no_weight(step):
    page = step(3)
    weight = number(page, "Weight on the centre")
    expect(weight).to_contain_text("%")
    page.locator(".learn-strip .learn-frame").first.click(position={"x": 1, "y": 1})
    expect(weight).to_have_text("outside")
    slide(page, "Sharpness", "2")
    expect(number(page, "Largest error")).to_have_text(re.compile("^0, at most .* × 10⁻⁸ allowed$"))
    expect(page.locator(".learn-line.learn-first").first).to_be_attached()


def test_a_border_is_matched(step):
    page = step(4)
    border = number(page, "Largest difference at the border")
    expect(border).not_to_have_text(EXACT)
    choose(page, "Beyond the border, the attention sees", "zeros")
    expect(border).to_have_text(EXACT)


def test_every_tap_needs_its_head(step):
    page = step(5)
    pressed = page.locator('.learn-board button[aria-pressed="true"]')
    for left in (4, 3, 2, 1, 0):
        pressed.first.click()
        expect(pressed).to_have_count(left)  # the board follows in the next frame
    expect(page.locator(".learn-slider output")).to_have_text("0 of 9")
    choose(page, "Size of the kernel", "2 × 2")
    slide(page, "Number of heads", "4")
    expect(number(page, "Error on this picture")).to_have_text(EXACT)
    page.get_by_role("button", name="Head for the tap at row 0, column 0").click()
    expect(number(page, "Worst error")).to_have_text("0.31")
    expect(number(page, "Best with as many heads")).to_have_text("0.07")


def test_waves_remove_copies_and_wide_tables_have_more_parameters(step):
    page = step(7)
    captions = page.locator("figcaption")
    sinusoidal = captions.filter(has_text="Sinusoidal")
    expect(sinusoidal).not_to_contain_text("match 100 %")
    slide(page, "Waves", "2")
    expect(sinusoidal).to_contain_text("match 100 %")
    tables = captions.filter(has_text="Learned, one table per axis")
    expect(tables).to_contain_text("32,000 parameters")
    slide(page, "Width of the tables", "64")
    expect(tables).to_contain_text("5,120 parameters")
    expect(captions.filter(has_text="Learned table")).to_contain_text("8,649 parameters")


def test_costs_are_shown_as_they_were_recorded(step):
    page = step(8)
    expect(page.get_by_role("row", name=re.compile("all pairs"))).to_contain_text("3320")
    page.locator(".segments label").last.click()
    expect(page.locator(".learn-table caption")).not_to_have_text("ms per image, medians")
