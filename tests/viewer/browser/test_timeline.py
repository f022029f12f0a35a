"""Heads during a training, in a browser: what is drawn, and what is played."""

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from convattn.heads.head_snapshots import HeadSnapshot
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene, write_page

HEADS = [4, 2]
MOMENTS = 9


@pytest.fixture(scope="module")
def trained_page(tmp_path_factory):
    """The address of a page of a network whose layers have different numbers of heads, with its training."""
    network = AttentionNet(width=8, depth=2, heads=HEADS, ffn=8).eval()
    shots = [
        HeadSnapshot(
            epoch, epoch, layer, np.full((heads, 2), epoch / 2), np.tile(np.eye(2), (heads, 1, 1))
        )
        for epoch in range(MOMENTS)
        for layer, heads in enumerate(HEADS)
    ]
    scene = build_scene(Exhibit(network, torch.rand(1, 3, 16, 16), heads=shots))
    return write_page(scene, tmp_path_factory.mktemp("trained") / "page.html").as_uri()


def test_layers_with_different_numbers_of_heads_are_drawn(opened, trained_page):
    page = opened(f"{trained_page}#view=explore")
    panels = page.locator(".timeline-panel svg")
    expect(panels).to_have_count(len(HEADS))
    for panel, heads in zip(panels.all(), HEADS, strict=True):
        expect(panel).to_have_attribute("viewBox", "-5 -5 10 10")
        expect(panel.locator(".centre")).to_have_count(heads)


@pytest.mark.parametrize(("calm", "passed"), [(True, 700), (False, 750)], ids=["steps", "smooth"])
def test_playing_goes_on_from_the_moment_that_is_shown(opened, trained_page, calm, passed):
    """Eight moments take 6000 ms, or 700 ms each where a reader wants less movement."""
    page = opened(f"{trained_page}#epoch=3", calm=calm)
    epoch = page.locator(".epoch")
    expect(epoch).to_have_text("epoch 3")
    page.evaluate("performance.now = () => 0")
    page.get_by_role("button", name="Play").click()
    page.evaluate(
        "new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))"
    )
    expect(epoch).to_have_text("epoch 3")
    page.evaluate(f"performance.now = () => {passed}")
    expect(epoch).to_have_text("epoch 4")
