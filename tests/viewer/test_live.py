"""Networks in memory: what is asked of them, and pictures that are added."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image

from convattn import AttentionNet
from convattn.viewer import Exhibit, build_scene
from convattn.viewer.asked import Asked
from convattn.viewer.live import Live
from convattn.viewer.refused import RefusedError


def _exhibit(channels=3):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=True, in_channels=channels).eval()
    return Exhibit(network, torch.rand(2, channels, 10, 14), mean=(0.5,) * channels, std=(0.5,) * channels)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (Asked(-1, 0, (0.0, 0.0)), 404),
        (Asked(0, -1, (0.0, 0.0)), 404),
        (Asked(0, "all", (0.0, 0.0)), 404),
        (Asked(0, 0, (math.nan, 0.0)), 400),
        (Asked(0, 0, (0.0, math.inf)), 400),
    ],
)
def test_what_makes_no_sense_is_refused(asked, status):
    with pytest.raises(RefusedError, match=r"must be") as caught:
        Live(_exhibit()).rows(asked)
    assert caught.value.status == status


@pytest.mark.parametrize("token", [-1, 0, 2**31 - 1, 2**31, 10**30])
def test_a_token_that_no_layer_has_is_in_no_row(token):
    live = Live(_exhibit())
    assert len(live.rows(Asked(0, 0, token))) < len(live.rows(Asked(0, 0, (0.0, 0.0))))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda _: torch.zeros(3, 9, 14), r"has the shape \[3, 9, 14\]; the other images have \[3, 10, 14\]"),
        (lambda _: torch.zeros(1, 3, 10, 14), r"has the shape"),
        (lambda _: torch.full((3, 10, 14), math.nan), "not finite"),
        (lambda _: 1 / 0, r"cannot be prepared \(ZeroDivisionError"),
        (lambda _: None, r"cannot be prepared \(AttributeError"),
    ],
)
def test_a_picture_that_is_refused_leaves_no_trace(prepare, message):
    """An image that stayed behind would shift the numbers of all that come after it."""
    works = [False]
    good = torch.rand(3, 10, 14)
    live = Live(_exhibit(), prepare=[lambda picture: good if works[0] else prepare(picture)])
    before = live.scene_bytes()
    with pytest.raises(RefusedError, match=message) as caught:
        live.add(Image.new("RGB", (20, 20)), "picture")
    assert caught.value.status == 422
    assert live.scene_bytes() == before
    works[0] = True
    live.add(Image.new("RGB", (20, 20)), "picture")
    own = Live(Exhibit(live._exhibits[0].network, good[None]))
    query = (3.0, 5.0)
    assert live.rows(Asked(0, 2, query)) == own.rows(Asked(0, 0, query))


def test_a_network_of_one_channel_sees_the_lightness():
    live = Live(_exhibit(channels=1))
    live.add(Image.new("RGB", (20, 20), (10, 200, 90)), "green")
    lightness = Image.new("RGB", (1, 1), (10, 200, 90)).convert("L").getpixel((0, 0))
    assert torch.equal(live._images[0][2], ((torch.tensor(lightness) / 255 - 0.5) / 0.5).expand(1, 10, 14))


def test_a_picture_of_another_shape_is_seen_whole():
    live = Live(_exhibit())
    wide = Image.new("RGB", (56, 10), (255, 0, 0))
    wide.paste((0, 0, 255), (42, 0, 56, 10))
    live.add(wide, "half")
    image = live._images[0][-1]
    assert image[0, :, :8].min() > 0.9  # red: the first half, of which a cut from the middle would take less
    assert image[2, :, -2:].min() > 0.9  # blue: the last quarter


def test_what_is_no_picture_takes_none():
    with pytest.raises(RefusedError, match="not known how pictures are prepared"):
        Live(_exhibit(channels=2)).add(Image.new("RGB", (20, 20)), "picture")


def test_threads_that_show_one_network_do_not_mix_up_what_they_read():
    exhibit = _exhibit()
    flags = [module.training for module in exhibit.network.modules()]
    wanted = build_scene(exhibit).to_bytes()
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(lambda: build_scene(exhibit).to_bytes()) for _ in range(6)]
    assert all(one.result() == wanted for one in made)
    assert [module.training for module in exhibit.network.modules()] == flags
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in exhibit.network.modules())
