"""The Explore view in a browser: what is seen, pressed and saved."""

import html
import io
import math
import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect
from tests.viewer.browser.reading import (
    cell,
    choose,
    download,
    expect_map,
    map_of,
    own_weights,
    query_of,
    read_weights,
)

from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene
from convattn.viewer.notebook import NotebookPage
from convattn.viewer.page import page_html


@pytest.fixture
def own_picture(tmp_path):
    """A picture that a reader adds to the page."""
    Image.effect_noise((90, 70), 90).convert("RGB").save(tmp_path / "own.png")
    return tmp_path / "own.png"


def add_picture(page, file):
    page.locator('input[type="file"]').set_input_files(file)


def test_every_head_is_a_map_and_its_numbers_are_the_librarys_wherever_one_looks(
    opened, address, shown
):
    page = opened(f"{address}#view=explore")
    expect(page.get_by_role("heading", name="All heads 7 layers")).to_be_visible()
    for layer, head in ((0, 0), (3, 4), (6, 8)):
        choose(page, layer, head)
        expect_map(page, *own_weights(shown, layer, head, query_of(page)))
    picture = page.get_by_test_id("picture")
    picture.click(position={"x": 20, "y": 40})
    first = query_of(page)
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.6 * box["height"], steps=4)
    page.mouse.up()
    assert query_of(page)[0] > first[0]
    assert query_of(page)[1] > first[1]
    choose(page, 1, 3)
    expect_map(page, *own_weights(shown, 1, 3, query_of(page)))


COLOURS = """(canvas, [left, top, width, height]) =>
  [...canvas.getContext("2d").getImageData(left, top, width, height).data].join()"""


def test_the_table_of_displacements_holds_the_map_in_its_colours(opened, address, shown):
    at = f"{address}#controls=true&layer=4&head=7&query=9,21"
    page = opened(at)
    layer = shown.scene.header["networks"][0]["layers"][4]
    rows, cols = layer["keys"]["grid"]
    queries = layer["attention"]["queries"]
    first, stride = (torch.tensor(queries[name]) for name in ("first", "stride"))
    row, col = (first + stride * torch.tensor(cell(layer, (9, 21)))).tolist()
    heat, table = page.locator(".detail .heat"), page.locator(".displacements canvas").first
    expect(page.locator(".displacements .bar-title")).to_contain_text("layer 5 head 8")
    drawn = []
    for values, choice in (("weights", "Weights"), ("scores", "Before softmax")):
        page.goto(f"{at}&values={values}")  # without loading it again
        expect(page.get_by_label(choice, exact=True)).to_be_checked()
        colours = heat.evaluate(COLOURS, [0, 0, cols, rows])
        assert len(set(re.findall(r"\d+,\d+,\d+", colours))) > 3
        assert table.evaluate(COLOURS, [cols - 1 - col, rows - 1 - row, cols, rows]) == colours
        assert table.evaluate(COLOURS, [cols - 1 - col, rows - row, cols, rows]) != colours
        drawn.append(colours)
    assert drawn[0] != drawn[1]


def test_the_keyboard_moves_the_query_and_chooses_heads(opened, address, shown):
    page = opened(f"{address}#layer=0&head=0")
    page.get_by_test_id("picture").focus()
    row, col = query_of(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert query_of(page)[0] > row
    assert query_of(page)[1] < col
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    assert max(query_of(page)) <= 1
    page.locator('button.map[data-layer="0"][data-head="0"]').focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    chosen = page.locator('button.map[aria-pressed="true"]')
    expect(chosen).to_have_attribute("data-layer", "1")
    expect(chosen).to_have_attribute("data-head", "1")
    expect_map(page, *own_weights(shown, 1, 1, query_of(page)))


def test_keys_of_the_browser_are_left_to_it(opened, address):
    """Alt and an arrow go back."""
    page = opened(f"{address}#view=explore")
    page.evaluate(
        "addEventListener('keydown', (event) => { left = !event.defaultPrevented; event.preventDefault(); })"
    )
    picture, handle = page.get_by_test_id("picture"), page.get_by_test_id("handle")
    sentence = page.get_by_test_id("sentence")
    for place in (picture, handle, page.locator("button.map").first):
        before = query_of(page), sentence.text_content()
        for key in ("Alt+ArrowLeft", "Control+ArrowUp", "Control+Home", "Meta+ArrowLeft"):
            place.press(key)
            assert page.evaluate("left")
            assert (query_of(page), sentence.text_content()) == before
    before = query_of(page)
    for key in ("Home", "PageDown"):
        handle.press(key)
        assert query_of(page) == before, "a key on the handle leaves the query"


def test_the_small_images_are_one_tab_stop(opened, address, shown):
    page = opened(f"{address}#view=explore")
    strip, thumbs = page.get_by_role("toolbar", name="Image"), page.locator("button.thumb")
    expect(thumbs).to_have_count(2)
    first, second = [image["name"] for image in shown.scene.header["images"]]
    for name, key in ((first, "Home"), (second, "ArrowRight"), (second, "ArrowRight")):
        page.locator('button.thumb[tabindex="0"]').focus()
        page.keyboard.press(key)
        chosen = strip.get_by_role("button", name=name, exact=True)
        expect(chosen).to_be_focused()
        expect(chosen).to_have_attribute("aria-pressed", "true")
        expect(page.locator('button.thumb[tabindex="0"]')).to_have_count(1)
    page.keyboard.press("Tab")
    expect(strip.locator(":focus")).to_have_count(0)
    strip.evaluate("strip => strip.style.width = '44px'")  # one image below the other
    thumbs.last.focus()
    page.keyboard.press("ArrowUp")
    expect(thumbs.first).to_be_focused()


def test_maps_of_content_are_the_librarys_to_half_a_level(opened, address, shown):
    at = f"{address}#network=1&compare=&query=9,22&layer=1&head=2"
    page = opened(at)
    for image in (0, 1):
        page.goto(f"{at}&image={image}")  # without loading it again
        expect_map(page, *read_weights(shown, image, 1, 2, (9, 22)))


def test_the_view_is_taken_along(opened, address, shown):
    page = opened(f"{address}#layer=1&head=0", permissions=["clipboard-read", "clipboard-write"])
    drawn = Image.open(io.BytesIO(download(page, "Save map as PNG")))
    assert (drawn.width, drawn.height) == (620, 620)
    assert len(drawn.getcolors(2**16)) > 2
    printed = ET.fromstring(download(page, "Save map as SVG"))
    kinds = Counter(element.tag.rpartition("}")[2] for element in printed)
    keys = math.prod(shown.scene.header["networks"][0]["layers"][1]["keys"]["grid"])
    assert kinds == {"rect": keys + 64, "circle": 2, "text": 5}
    assert printed[-2].text.endswith(", layer 2, head 1")
    assert printed[-1].text == "attention of each key; ring: query"
    far = ET.fromstring(download(opened(f"{address}#layer=1&head=0&query=9,22"), "Save map as SVG"))
    (ring, *_) = [element for element in far if element.tag.endswith("circle")]
    layer = shown.scene.header["networks"][0]["layers"][1]
    rows, cols = layer["keys"]["grid"]
    assert [rows, cols] == layer["grid"]
    assert rows > 20  # of which the page shows a part, around the query
    for name, at in (("cx", 22), ("cy", 9)):
        assert float(ring.get(name)) == pytest.approx(240 * (at + 0.5) / cols)
    choose(page, 3, 2)
    page.get_by_test_id("picture").click(position={"x": 30, "y": 30})
    expect(page).to_have_url(re.compile(r"#(?=.*query=)(?=.*head=2)"))
    before, query = map_of(page), query_of(page)
    again = opened(page.url)
    assert query_of(again) == query
    expect_map(again, before, 0.0)
    link, status = page.get_by_role("button", name="Copy link"), page.locator(".save-status")
    link.click()
    expect(status).to_have_text("The link to this view is on the clipboard.")
    handle, put_back = page.get_by_test_id("handle"), page.get_by_role("button", name="Put heads")
    handle.press("ArrowRight")
    expect(put_back).to_be_visible()  # it moves what is below it
    link.click()
    expect(status).to_have_text("The link to this view is on the clipboard.")
    page.wait_for_function("navigator.clipboard.readText().then((text) => text.includes('moved'))")
    moved = opened(page.evaluate("navigator.clipboard.readText()"))
    assert map_of(page).sub(before).abs().max() > 0.01
    expect_map(moved, map_of(page), 0.0)
    put_back.press("Enter")
    expect(handle).to_be_focused()
    expect_map(page, before, 0.0)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    link.click()
    expect(status).to_contain_text("take the link from the address bar")


def test_nothing_shows_between_the_cells_of_a_saved_map(browser, opened, address):
    """A map for print whose cells are all black is black on white paper."""
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    printed = ET.fromstring(download(opened(f"{address}#layer=0&head=0"), "Save map as SVG"))
    for element in list(printed):
        if element.tag.endswith("rect"):
            element.set("fill", "black")
        else:
            printed.remove(element)
    for scale in (1, 1.37):
        page = browser.new_page(device_scale_factor=scale)
        page.set_content(
            f"<body style='margin: 0'>{ET.tostring(printed, encoding='unicode')}</body>"
        )
        drawn = Image.open(io.BytesIO(page.screenshot())).convert("L")
        page.close()
        inside = drawn.crop((2, 2, int(238 * scale), int(238 * scale)))
        assert inside.getextrema() == (0, 0), scale


PAPER = "getComputedStyle(document.querySelector('.convattn')).getPropertyValue('--paper')"
WEAKEST = "[...canvas.getContext('2d').getImageData(0, 0, 1, 1).data].join()"


def test_the_theme_is_the_systems(opened, address):
    page = opened(f"{address}#controls=true", dark=True)
    ramp = page.locator(".overview .ramp")
    for night in (True, False, True):
        page.emulate_media(color_scheme="dark" if night else "light")
        assert page.evaluate(PAPER).strip() == ("#141619" if night else "#ffffff")
        colour = "18,22,38,255" if night else "250,250,240,255"
        # it is drawn again in the next frame
        page.wait_for_function(f"canvas => {WEAKEST} === '{colour}'", arg=ramp.element_handle())


def test_it_fits_a_phone(opened, address):
    page = opened(f"{address}#controls=true", width=360, height=740, has_touch=True, is_mobile=True)
    expect(page.locator("button.map").first).to_be_visible()
    page.evaluate(
        "columns = document.querySelector('.compare-columns'); columns.append(columns.lastChild.cloneNode(true))"
    )
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, "three networks side by side"
    page.get_by_test_id("picture").tap(position={"x": 50, "y": 60})
    choose(page, 4, 7)


def test_a_press_on_the_ring_moves_nothing_and_a_drag_moves_it_as_far(opened, address):
    page = opened(f"{address}#view=explore")
    handle = page.get_by_test_id("handle")
    box, before = handle.bounding_box(), handle.get_attribute("aria-label")
    x, y = box["x"] + box["width"] / 2 + 5, box["y"] + box["height"] / 2 + 5
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.up()
    expect(handle).to_have_attribute("aria-label", before)
    page.mouse.down()
    page.mouse.move(x - 60, y)
    page.mouse.up()
    expect(handle).not_to_have_attribute("aria-label", before)
    assert abs(handle.bounding_box()["x"] - (box["x"] - 60)) < 2


def test_an_own_image_is_run(opened, address, own_picture):
    page = opened(f"{address}#view=explore")
    page.get_by_test_id("handle").press("ArrowRight")
    expect(page.locator(".classes")).to_contain_text("Moved heads are where they are now")
    before = page.locator(".class-list").text_content()
    add_picture(page, own_picture)
    thumbs = page.locator("button.thumb")
    expect(thumbs).to_have_count(3)
    expect(thumbs.last).to_have_attribute("aria-pressed", "true")
    expect(thumbs.last.locator("img")).to_have_css("object-fit", "contain")
    expect(page.locator(".class-list")).not_to_have_text(before)
    own_picture.write_bytes(b"nothing")
    add_picture(page, own_picture)
    expect(page.get_by_text("no picture")).to_be_visible()


def test_a_network_beside_says_whether_it_lacks_the_head_or_its_map(opened, address, own_picture):
    page = opened(f"{address}#controls=true&compare=1&head=5")
    beside = page.locator(".compare-numbers").last
    expect(beside).to_have_text("It has no such head.")
    choose(page, 0, 2)
    expect(beside).to_contain_text("hard share")
    add_picture(page, own_picture)
    expect(beside).to_have_text("It has no map of this query and image.")


def test_all_heads_of_another_network_are_shown_where_they_are_and_keep_the_focus(opened, address):
    page = opened(f"{address}#controls=true&compare=1&layer=1&head=1")
    page.get_by_role("button", name="Show all its heads").click()
    chosen = page.locator('button.map[data-layer="1"][data-head="1"]')
    expect(chosen).to_be_focused()
    expect(page).to_have_url(re.compile("network=1"))


def test_where_there_is_no_map_none_is_named_or_saved(opened, address, own_picture):
    page = opened(f"{address}#controls=true&network=1&compare=")
    small = page.locator("button.map").first
    expect(small).to_have_attribute("aria-label", re.compile("Head 1 of layer 1 looks"))
    add_picture(page, own_picture)
    expect(page.get_by_role("alert")).to_be_visible()
    none = "Head 1 of layer 1 has no map of this query and image"
    expect(small).to_have_attribute("aria-label", none)
    for kind in ("PNG", "SVG", "CSV"):
        page.get_by_role("button", name=f"Save map as {kind}").click()
        expect(page.locator(".save-status")).to_have_text("There is no map to save.")
        page.locator(".save-status").evaluate("status => (status.textContent = '')")


def test_a_page_within_a_frame_has_no_link_and_opens_those_of_others(opened, tmp_path):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8).eval()
    text = page_html(build_scene(Exhibit(network, torch.rand(1, 3, 8, 8))))
    frame = f'<iframe width="1000" height="700" srcdoc="{html.escape(text)}"></iframe>'
    frames = {"frame": frame, "notebook": NotebookPage("A page", text)._repr_html_()}
    for name, content in frames.items():
        file = tmp_path / f"{name}.html"
        file.write_text(content)
        page = opened(file.as_uri())
        frame = page.frame_locator("iframe")
        frame.get_by_role("button", name="All controls").click()
        expect(frame.get_by_role("button", name="Save map as PNG")).to_be_visible()
        expect(frame.get_by_role("button", name="Copy link")).to_have_count(0)
    frame.get_by_role("tab", name="Learn").click()
    frame.get_by_role("button", name="Step 2").click()
    link = frame.get_by_role("link", name="Paper, theorem 1")
    link.evaluate("link => { link.href = 'about:blank'; }")  # or a request would leave this machine
    with page.expect_popup():
        link.click()
