"""Layers of odd kinds in a browser: padding on one side, names that begin with a number."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

from convattn.convert import network_to_attention
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, build_scene, write_page


def address_of(network, folder):
    scene = build_scene(Exhibit(network.eval(), torch.rand(1, 3, 12, 12)))
    return f"{write_page(scene, folder / 'page').as_uri()}#view=explore"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_padding_on_the_right_and_below_alone_is_hatched(opened, tmp_path):
    """As an even kernel has with padding="same"."""
    network, _ = network_to_attention(nn.Sequential(nn.Conv2d(3, 5, 2, padding="same")))
    page = opened(address_of(network, tmp_path))
    expect(page.get_by_text("Hatched: padding around the image.")).to_be_visible()
    expect(page.locator(".detail .outside")).to_have_attribute("d", "M-0.5 -0.5h13v13h-13zM-0.5 -0.5h12v12h-12z")
    expect(page.locator(".matrix-row")).to_have_class(re.compile("padded"))


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = RelativeAttention2d(3, 3, 2, "quadratic")

    def forward(self, x):
        return self.attn(x)


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
    page = opened(address_of(nn.Sequential(_Block()), tmp_path))
    name = page.locator(".layer-name small")
    expect(name).to_have_text("0.attn")
    left = name.evaluate(LEFT)
    assert left == sorted(left)
