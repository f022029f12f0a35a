"""Explore as it opens: three questions, words of heads, two heads side by side, and effect beside cause."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from playwright.sync_api import expect
from tests.viewer.browser.axe import complaints
from tests.viewer.browser.reading import choose, query_of

from convattn.heads import analyze, attention_maps
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene, write_page

ALL = "All controls"


@pytest.fixture
def explore(opened, address):
    def open_explore(rest="", **options):
        page = opened(f"{address}#view=explore{rest}", **options)
        expect(page.locator("button.map").first).to_be_visible()
        return page

    return open_explore


def test_explore_opens_simple_and_the_address_keeps_what_is_open(opened, explore):
    page = explore()
    for part in (".controls", ".numbers", ".displacements", ".compare", ".saving"):
        expect(page.locator(part).first).to_be_hidden()
    page.get_by_role("button", name=ALL).click()
    expect(page.locator(".numbers tbody tr").first).to_be_visible()
    expect(page).to_have_url(re.compile("controls=true"))
    again = opened(page.url)
    expect(again.locator(".controls")).to_be_visible()
    again.goto(again.url.replace("controls=true", "values=scores"))
    expect(again.locator(".controls")).to_be_visible()
    again.get_by_role("button", name="Fewer controls").click()
    expect(again.locator(".controls")).to_be_hidden()
    expect(again).not_to_have_url(re.compile("values"))


def test_the_share_of_place_is_what_two_pictures_have_in_common(opened, tmp_path, exhibits):
    """And not what a picture has in common with a mean that holds it: of two pictures that is at least half."""
    vit = replace(exhibits[1], network=copy.deepcopy(exhibits[1].network))
    with torch.no_grad():
        for block in vit.network.blocks:
            block.attn.qkv.weight.mul_(20)
    page = opened(f"{write_page(build_scene(vit), tmp_path / 'page.html').as_uri()}#view=explore")
    page.get_by_role("button", name="By place or by content?").click()
    answer = page.get_by_test_id("answer")
    expect(answer).to_contain_text("% of the map")
    (maps, *_) = attention_maps(vit.network, vit.images).values()
    own, other = maps[:, 0, *(place // 4 for place in query_of(page))]
    share = 100 * float(torch.minimum(own, other).sum() / own.sum())
    assert share < 45
    said = float(re.search(r"([\d.]+) % of the map", answer.text_content())[1])
    assert abs(said - share) < 4  # maps have 256 levels


def test_a_question_sets_the_controls_and_is_answered(explore):
    page = explore("&network=1&compare=")
    answer = page.get_by_test_id("answer")
    page.get_by_role("button", name="By place or by content?").click()
    expect(answer).to_contain_text("% of the map of this picture is in the mean of the others")
    expect(page).to_have_url(re.compile("average=true"))
    page.get_by_role("button", name="What changes if I move it?").click()
    expect(answer).to_contain_text("no centre")
    expect(page).not_to_have_url(re.compile("average"))
    page = explore()
    page.get_by_role("button", name="By place or by content?").click()
    expect(page.get_by_test_id("answer")).to_contain_text("By place")
    page.get_by_role("button", name="What changes if I move it?").click()
    expect(page.get_by_role("slider", name="Sharpness")).to_be_visible()


def test_heads_are_sorted_by_their_word_and_filtered(explore):
    page = explore()
    heads = page.get_by_role("combobox", name="Heads")
    expect(heads.locator("option").nth(2)).to_be_attached()
    heads.select_option("words")
    expect(page.locator("button.map")).to_have_count(58)
    titles = [*filter(None, page.locator(".layer-name b").all_text_contents())]
    assert titles == sorted(titles)
    assert len(set(titles)) == len(titles) > 5
    word = "convolution 1 left (by construction)"
    heads.select_option(word)
    shown = page.locator("button.map")
    assert 0 < shown.count() < 58
    shown.first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".detail h2")).to_contain_text(word)
    expect(page).to_have_url(re.compile("order=convolution"))
    assert complaints(page) == []
    page.evaluate("location.hash = 'view=explore&order=nonsense'")
    expect(page.locator("button.map")).to_have_count(58)
    page.evaluate(
        "location.hash = 'view=explore&order=words&network=1'"
    )  # all of one word: unknown
    expect(page.locator(".layer-name b")).to_have_text(["1", "2"])
    expect(heads).to_be_hidden()


def test_two_heads_stand_side_by_side(opened, explore):
    page = explore("&layer=1&head=3")
    page.get_by_role("button", name="Keep beside").click()
    choose(page, 2, 5)
    both = page.locator(".detail .field")
    expect(both).to_have_count(2)
    left, right = (field.bounding_box() for field in both.all())
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    expect(page.locator(".beside figcaption")).to_contain_text("Layer 2, head 4")
    expect(page).to_have_url(re.compile("beside=1,3"))
    expect(opened(page.url).locator(".beside .field")).to_be_visible()
    page.get_by_role("button", name="Put away").click()
    expect(page.locator(".beside")).to_be_hidden()


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_class_scores_stand_by_the_ring_and_say_what_moving_it_changed(explore, width, height):
    page = explore("&layer=1&head=2", width=width, height=height)
    page.get_by_test_id("handle").scroll_into_view_if_needed()
    ring = page.get_by_test_id("handle")
    ring.press("ArrowDown")
    expect(page.locator(".class-share small").first).to_have_text(re.compile("[+−]"))
    scores = page.locator(".class-list")
    scores.scroll_into_view_if_needed()
    for part in (ring, scores):
        box = part.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    sentence = page.get_by_test_id("sentence").bounding_box()
    assert sentence["y"] > scores.bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollHeight") <= 2500


def test_numbers_of_before_a_move_are_marked(opened, tmp_path):
    network, images = (
        AttentionNet(width=8, depth=1, heads=4, ffn=8).eval(),
        torch.rand(2, 3, 16, 16),
    )
    with torch.no_grad():  # sharp heads, whose words change with their places
        network.blocks[0].mixer.encoding.centres.zero_()
        network.blocks[0].mixer.encoding.root_sharpness.fill_(3)
    report = analyze(network, images, controls=(), progress=False)
    scene = build_scene(Exhibit(network, images, report=report))
    address = write_page(scene, tmp_path / "page.html").as_uri()
    page = opened(f"{address}#controls=true&head=2")
    column = page.get_by_role("columnheader", name="Over images")
    expect(column).to_have_text("Over images")
    title = page.locator(".detail h2")
    expect(page.get_by_test_id("sentence")).to_contain_text("on 2 images")
    before = title.text_content()
    page.get_by_test_id("handle").press("ArrowDown")
    page.get_by_test_id("handle").press("ArrowDown")
    expect(column).to_have_text("Over images, as measured")
    expect(title).not_to_have_text(before)


def test_the_printed_page_begins_with_the_chosen_head(explore):
    page = explore("&layer=2&head=1")
    page.emulate_media(media="print")
    order = page.evaluate(
        """[".detail .field", ".matrix", ".asking", ".under-map"].map((name) => {
          const { top, height } = document.querySelector(name).getBoundingClientRect();
          return height ? top : null;
        })"""
    )
    assert order[0] < 300 < order[1]
    assert order[2:] == [None, None]
    assert page.pdf().startswith(b"%PDF")
