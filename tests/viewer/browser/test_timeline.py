"""Heads during a training, in a browser: what is drawn, and what is played."""

import copy

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from tests.viewer.browser.reading import choose, expect_map, query_of

from convattn.budget import budget, references
from convattn.encodings import Quadratic
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene, write_page

HEADS = [4, 2]
MOMENTS = 9


@pytest.fixture(scope="module")
def network():
    """A network whose layers have different numbers of heads."""
    return AttentionNet(width=8, depth=2, heads=HEADS, ffn=8).eval()


def shots(of_layers=HEADS):
    """The heads of each layer, on their way down and to the right."""
    return [
        HeadSnapshot(
            epoch, epoch, layer, np.full((heads, 2), epoch / 2), np.tile(np.eye(2), (heads, 1, 1))
        )
        for epoch in range(MOMENTS)
        for layer, heads in enumerate(of_layers)
    ]


def page_of(folder, *networks, **options):
    """Writes a page of networks, with the training of the first, and returns its address."""
    images, prepared = torch.rand(1, 3, 16, 16), {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    exhibits = []
    for number, network in enumerate(networks):
        own = {} if exhibits else options
        exhibits.append(Exhibit(network, images, name=f"network {number}", **prepared, **own))
    return write_page(build_scene(exhibits), folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def trained_page(network, tmp_path_factory):
    """The address of a page of the network, with its training."""
    return page_of(tmp_path_factory.mktemp("trained"), network, heads=shots())


def test_layers_with_different_numbers_of_heads_are_drawn(opened, trained_page):
    page = opened(f"{trained_page}#controls=true")
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


def weights_of(layer, head, query, epoch=None):
    """The weights of a layer's head, at an epoch or as they are, and how far float32 may be from them."""

    def attend(layer):
        return layer.attention((8, 8))[head, query[0], query[1]]

    layer = copy.deepcopy(layer)
    with torch.no_grad():
        if epoch is not None:
            layer.encoding = Quadratic(layer.num_heads, 2, sharpness=0.5)  # of a precision of 1
            layer.encoding.centres.fill_(epoch / 2)
        hi, lows = references(attend, layer)
    return hi, budget(hi, lows)


def test_maps_words_and_sharpness_are_those_of_the_epoch(opened, trained_page, network):
    page = opened(f"{trained_page}#epoch=3&layer=0&head=1")
    expect(page.locator(".epoch")).to_have_text("epoch 3")
    layers = [part for part in network.modules() if isinstance(part, RelativeAttention2d)]
    query = [place // 2 for place in query_of(page)]
    expect_map(page, *weights_of(layers[0], 1, query, epoch=3))
    expect(page.get_by_text("α = 0.50")).to_be_visible()
    handle = page.get_by_label("Centre of head 2: 1.50 cells down and 1.50 to the right")
    expect(handle).to_be_attached()
    page.get_by_label("Epoch").fill("8")
    expect_map(page, *weights_of(layers[0], 1, query))
    page.get_by_label("Epoch").fill("2")
    expect_map(page, *weights_of(layers[0], 1, query, epoch=2))
    choose(page, 1, 0)
    expect_map(page, *weights_of(layers[1], 0, query, epoch=2))


def test_an_epoch_of_one_network_is_none_of_another(opened, network, tmp_path):
    page = opened(f"{page_of(tmp_path, network, copy.deepcopy(network), heads=shots())}#epoch=3")
    note = page.locator(".classes .caption")
    expect(note).to_contain_text("at the last epoch")
    page.get_by_role("combobox", name="Network").select_option(index=1)
    expect(note).to_have_text("Computed in this page.")


@pytest.mark.parametrize(
    ("encoding", "options", "said"),
    [
        ("quadratic", {}, "Maps and words are those of the epoch, too."),
        ("generalized_quadratic", {}, "Maps stay at the last epoch"),
        ("quadratic", {"content": True}, "Maps stay at the last epoch"),
    ],
    ids=["round", "elliptic", "content"],
)
def test_what_does_not_follow_the_epoch_is_said(opened, tmp_path, encoding, options, said):
    network = AttentionNet(encoding, width=8, depth=1, heads=2, ffn=8, **options).eval()
    page = opened(f"{page_of(tmp_path, network, heads=shots([2]))}#controls=true")
    expect(page.locator(".timeline .caption")).to_contain_text(said)


def test_classes_are_said_to_be_those_of_the_last_epoch(opened, trained_page):
    page = opened(f"{trained_page}#epoch=3")
    note = page.locator(".classes .caption")
    expect(note).to_contain_text("at the last epoch: of others it has no weights.")
    page.get_by_label("Epoch").fill("8")
    expect(note).to_have_text("Computed in this page.")
