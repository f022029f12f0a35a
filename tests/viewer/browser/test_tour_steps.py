"""What can be touched in the tour: by mouse and keyboard, with the numbers that must follow."""

import re

import pytest
from playwright.sync_api import expect

EXACT = "0, exactly"
GREYS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [Math.min, Math.max].map((end) => end(...data.filter((_, at) => at % 4 === 0)));
}"""


@pytest.fixture(scope="module")
def page(opened_once, address):
    return opened_once(address)


@pytest.fixture
def step(page, address):
    """Goes to a step of the tour, as it is at first; 7 and 8 are its appendix."""

    def open_step(number):
        page.goto(f"{address}#view=learn&step={number - 1}")  # without loading it again
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


def test_a_pixel_asks_all_others_and_its_output_is_the_sum_of_parts(step):
    page = step(1)
    pixels = page.get_by_role("group", name="Pixels")
    output = number(page, "Its output")
    before = output.text_content()
    pixels.press("ArrowRight")
    expect(page.get_by_label("Sum", exact=True)).to_be_checked()  # its end, for who wants no motion
    expect(output).not_to_have_text(before)
    letter = page.locator(".learn-pixel-bars text").first
    expect(letter).to_be_hidden()
    page.get_by_label("Weights", exact=True).check(force=True)
    expect(letter).to_be_visible()
    parts = page.get_by_role("row", name="× weight").locator("td")
    expect(parts.last).to_have_text(output.text_content())
    weights = page.get_by_role("row", name="÷ sum").locator("td")
    slide(page, "Temperature", "2")
    expect(weights.first).to_have_text(re.compile("^0.04"))  # nearly 1 / 25
    expect(page.locator(".learn-slider output")).to_have_text("T = 100")
    slide(page, "Temperature", "-1")
    choose(page, "Scores come from", "place")
    expect(weights.first).to_have_text("1.000")
    expect(page.get_by_role("row", name="offset").locator("td").first).to_have_text("(0, +1)")
    told = output.text_content()
    choose(page, "Picture", "mirrored")
    expect(weights.first).to_have_text("1.000")
    expect(output).not_to_have_text(told)


def test_the_motion_of_a_pixel_begins_at_a_press_and_ends_in_two_seconds(opened, address):
    page = opened(f"{address}#view=learn&step=0", calm=False)
    expect(page.get_by_label("Weights", exact=True)).to_be_checked()
    page.evaluate("performance.now = () => 0")
    page.locator(".learn-touch .learn-frame").click(position={"x": 9, "y": 9})
    expect(page.get_by_label("Scores", exact=True)).to_be_checked()
    page.evaluate("performance.now = () => 2000")
    expect(page.get_by_label("Sum", exact=True)).to_be_checked()


def test_measured_heads_are_seen_from_any_patch_beside_untrained_ones(step):
    page = step(6)
    share = number(page, "At that neighbour")
    expect(share).to_have_text("61 to 65 %")
    page.get_by_role("button", name="3.4: neighbour 1 left").click()
    expect(share).to_have_text(re.compile(r"^6\d %$"))
    mark = page.locator(".learn-photograph .learn-query").first
    page.get_by_role("group", name="Photograph").press("ArrowUp")
    expect(mark).to_have_attribute("transform", "translate(8 7)")
    page.locator(".learn-photograph .learn-frame").last.click(position={"x": 2, "y": 2})
    expect(mark).to_have_attribute("transform", "translate(0 0)")
    choose(page, "Network", "Swin")
    expect(page.get_by_role("button", name="convolution 1 above")).to_be_visible()


def test_a_task_sets_the_page_and_has_an_answer_to_open(step):
    page = step(9)
    answers = page.locator("details p")
    expect(answers).to_have_count(6)
    expect(answers.first).to_be_hidden()
    page.locator("summary").first.press("Enter")
    expect(answers.first).to_be_visible()
    page.get_by_role("link", name="Fewer heads than taps").press("Enter")
    expect(page.locator('[data-step="5"]')).to_be_visible()


def test_a_head_is_moved_by_mouse_and_keys_and_put_back(step):
    page = step(2)
    difference = number(page, "Largest difference")
    expect(difference).to_have_text(EXACT)
    for name in (
        "Picture",
        "Convolution",
    ):  # both from black to white, or a blur seems to add contrast
        picture = page.get_by_role("img", name=name, exact=True)
        assert picture.evaluate(GREYS) == [0, 255], name
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
