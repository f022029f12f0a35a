"""Layers of odd kinds in a browser: padding on one side, names that begin with a number; and what is shown first."""

import re
from collections import OrderedDict
from dataclasses import replace

import pytest
import timm
import torch
from playwright.sync_api import expect
from tests.viewer.browser.reading import query_of
from torch import nn

from convattn.convert import network_to_attention
from convattn.heads import analyze
from convattn.heads.head_report import Estimate
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene, write_page


def address_of(network, folder, side=12):
    scene = build_scene(Exhibit(network.eval(), torch.rand(1, 3, side, side)))
    return f"{write_page(scene, folder / 'page.html').as_uri()}#controls=true"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_padding_on_the_right_and_below_alone_is_hatched(opened, tmp_path):
    """As an even kernel has with padding="same"."""
    network, _ = network_to_attention(nn.Sequential(nn.Conv2d(3, 5, 2, padding="same")))
    page = opened(address_of(network, tmp_path))
    expect(page.get_by_text("Hatched: padding around the image.")).to_be_visible()
    expect(page.locator(".detail .outside")).to_have_attribute(
        "d", "M-0.5 -0.5h13v13h-13zM-0.5 -0.5h12v12h-12z"
    )
    expect(page.locator(".matrix-row")).to_have_class(re.compile("padded"))


LEFT = """(name) => {
  const text = document.createTreeWalker(name, NodeFilter.SHOW_TEXT).nextNode();
  return [...text.data].map((_, at) => {
    const range = document.createRange();
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    return range.getBoundingClientRect().left;
  });
}"""
"""Where the letters of a text begin."""


def test_the_name_of_a_layer_is_read_from_the_left(opened, tmp_path):
    layer = RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")
    network = nn.Sequential(nn.Sequential(OrderedDict(attn=layer)))
    page = opened(address_of(network, tmp_path))
    name = page.locator(".layer-name small")
    expect(name).to_have_text("0.attn")
    left = name.evaluate(LEFT)
    assert left == sorted(left)


@pytest.mark.parametrize("side", [32, 72], ids=["one key", "keys that leave out the last cells"])
def test_the_table_of_a_layer_of_few_keys_is_drawn_for_every_query_and_hides_nothing(
    opened, tmp_path, side
):
    page = opened(address_of(timm.create_model("pvt_v2_b0"), tmp_path, side), height=1600)
    picture, table = page.get_by_test_id("picture"), page.locator(".displacements .field")
    heading = page.get_by_role("heading", name="Table of displacements").bounding_box()
    box = table.bounding_box()
    above = heading["x"] + 5, box["y"] - 15
    beside = box["x"] + box["width"] + 15, box["y"] + box["height"] - 15
    free = "([x, y]) => document.elementFromPoint(x, y).closest('.field') === null"
    for keys, way, place in (
        (["PageDown", "End"], "up", above),
        (["PageUp", "Home"], "down", beside),
    ):
        for key in keys:
            picture.press(key)
        expect(page.get_by_test_id("sentence")).to_contain_text(f"cells {way}")
        assert page.evaluate(free, place)


def test_arrows_move_the_query_where_cells_are_smaller_than_pixels(opened, tmp_path):
    """The second network sees 20 × 20 pixels, and the pictures are those of the first."""
    layer = RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic")
    shown = [Exhibit(layer, torch.rand(1, 3, side, side), name=f"{side}") for side in (8, 20)]
    page = opened(f"{write_page(build_scene(shown), tmp_path / 'page.html').as_uri()}#network=1")
    picture = page.get_by_test_id("picture")
    places = []
    for key in ["ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", *["ArrowDown"] * 9]:
        picture.press(key)
        places.append(query_of(page))
    assert places[:4] == [(5, 4), (5, 5), (4, 5), (4, 4)]
    assert places[-1] == (7, 4)


def test_without_a_report_the_head_of_most_weight_at_one_displacement_is_shown_first(
    opened, tmp_path
):
    network = AttentionNet(width=8, depth=2, heads=3, ffn=8).eval()
    soft, hard = [layer for layer in network.modules() if isinstance(layer, RelativeAttention2d)]
    with torch.no_grad():
        for layer in (soft, hard):
            layer.encoding.centres.copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
            layer.encoding.root_sharpness.fill_(0.5)
        hard.encoding.root_sharpness.copy_(
            torch.tensor([9.0, 1.0, 2.0])
        )  # the first looks at its query
    page = opened(address_of(network, tmp_path))
    expect(page.get_by_test_id("sentence")).to_contain_text("Head 3 of layer 2")


def test_the_head_that_displacement_explains_best_is_shown_first(opened, tmp_path):
    network = AttentionNet(width=8, depth=2, heads=3, ffn=8).eval()
    images = torch.rand(4, 3, 16, 16)
    report = analyze(network, images, controls=(), progress=False)
    layer = report.layers[1]
    heads = list(layer.heads)
    heads[2] = replace(heads[2], position_score=Estimate(2.0, 0.0))
    layer = replace(layer, measured=replace(layer.measured, heads=tuple(heads)))
    report = replace(report, layers=(report.layers[0], layer))
    scene = build_scene(Exhibit(network, images, report=report))
    address = write_page(scene, tmp_path / "page.html").as_uri()
    page = opened(f"{address}#view=explore")
    expect(page.locator('button.map[aria-pressed="true"]')).to_have_attribute("data-layer", "1")
    expect(page.locator(".detail h2")).to_contain_text("Layer 2, head 3")
