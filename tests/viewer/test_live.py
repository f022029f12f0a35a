"""Networks in memory: what is asked of them, and pictures that are added."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from convattn import AttentionNet
from convattn.heads.reading import watch
from convattn.layers import Content, GatedRelativeAttention2d, RelativeAttention2d
from convattn.viewer import Exhibit, build_scene
from convattn.viewer import live as live_file
from convattn.viewer.image_maps import encode_rows
from convattn.viewer.live import Live, RefusedError, RowsRequest


def _exhibit(channels=3):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=True, in_channels=channels).eval()
    return Exhibit(network, torch.rand(2, channels, 10, 14), mean=(0.5,) * channels, std=(0.5,) * channels)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"network": 1}, 404),
        ({"network": -1}, 400),
        ({"image": 2}, 404),
        ({"image": -1}, 400),
        ({"image": "all"}, 400),
        ({"row": math.nan}, 400),
        ({"col": math.inf}, 400),
        ({"part": "value"}, 400),
        ({"prefix": 0.5}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(asked, status):
    with pytest.raises(RefusedError, match=r"must be") as caught:
        Live(_exhibit()).rows(RowsRequest.read({"network": 0, "image": 0, "row": 0, "col": 0, **asked}))
    assert caught.value.status == status


@pytest.mark.parametrize("token", [-1, 0, 2**31 - 1, 2**31, 10**30])
def test_a_token_that_no_layer_has_is_in_no_row(token):
    live = Live(_exhibit())
    assert len(live.rows(RowsRequest(0, 0, token))) < len(live.rows(RowsRequest(0, 0, (0.0, 0.0))))


def test_the_bytes_of_the_maps_are_those_of_one_image_after_another():
    """A layer on 5 x 7 patches with 4 heads: 35 weights per row in bytes, and two numbers of four bytes."""
    live, query = Live(_exhibit()), (3.0, 5.0)
    assert live.map_bytes == 0
    held = 2 * 4 * 35 * (35 + 2 * 4)  # two parts
    for image, count in ((0, 1), (0, 1), (1, 2), ("mean", 3)):
        live.rows(RowsRequest(0, image, query))
        assert live.map_bytes == count * held


class _Counting(Live):
    """Notes which maps were computed."""

    def __init__(self, *args, **options):
        self.computed = []
        super().__init__(*args, **options)

    def _read(self, network, image):
        self.computed.append(image)
        return super()._read(network, image)


@pytest.mark.parametrize(
    ("bound", "images", "computed"),
    [
        (2, [0, 1, 0, "mean", 1], [0, 1, "mean", 1]),  # image 1 was used longest ago, though computed after 0
        (1.9, [0, 1, 1, 0], [0, 1, 0]),
        (0.9, [0, 0], [0, 0]),  # maps that are larger than the bound alone are not held
    ],
)
def test_the_maps_used_longest_ago_are_dropped(bound, images, computed, monkeypatch):
    size = 2 * 4 * 35 * (35 + 2 * 4)
    monkeypatch.setattr(live_file, "MAP_BYTES", int(bound * size))
    live = _Counting(_exhibit())
    for image in images:
        assert load(live.rows(RowsRequest(0, image, (3.0, 5.0))))
    assert live.computed == computed
    assert live.map_bytes == int(bound) * size


def test_concurrent_callers_wait_for_one_run():
    live = _Counting(_exhibit())
    with ThreadPoolExecutor(6) as pool:
        rows = [pool.submit(live.rows, RowsRequest(0, 1, (3.0, 5.0))) for _ in range(6)]
    assert len({one.result() for one in rows}) == 1
    assert live.computed == [1]


@pytest.mark.parametrize(("content", "part"), [(True, "position"), (False, "both")])
def test_what_the_page_computes_itself_is_in_no_row(content, part):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=content).eval()
    live = Live(Exhibit(network, torch.rand(1, 3, 10, 14)))
    assert load(live.rows(RowsRequest(0, 0, (0.0, 0.0), part))) == {}
    assert (live.map_bytes > 0) == content


def test_weights_below_zero_come_with_the_lowest_of_each_head():
    """A gate near −1 takes the weights of content, here sharp, from twice those of position."""
    torch.manual_seed(0)
    layer = GatedRelativeAttention2d(3, 4, 2, "sinusoidal", gate="tanh").eval()
    image, calls = torch.rand(1, 3, 5, 7), []
    with torch.no_grad():
        layer.gate.fill_(-5)
        layer.content.key.weight.mul_(97)
    watch(layer, image, lambda call: calls.append(encode_rows(call.weights[0])))
    rows = load(Live(Exhibit(layer, image)).rows(RowsRequest(0, 0, (2.0, 3.0))))
    assert bool((rows["0/lows"] < 0).all())
    assert sorted(rows) == ["0/levels", "0/lows", "0/scales"]
    for kind, found in rows.items():
        assert torch.equal(found, getattr(calls[0], kind.removeprefix("0/"))[0, :, 2 * 7 + 3])
    assert "0/lows" not in load(Live(_exhibit()).rows(RowsRequest(0, 0, (2.0, 3.0))))


class _Fickle(nn.Module):
    """Runs its layer again where an image is bright, and fails where it is brighter still."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RelativeAttention2d(3, 3, 2, "quadratic", content=Content(key_width=5))

    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 2:
            raise ValueError("too bright")
        return self.layer(self.layer(x)) if x.mean() > 1 else self.layer(x)


def test_a_call_that_the_first_image_does_not_have_is_left_out():
    torch.manual_seed(0)
    network = _Fickle().eval()
    images = torch.stack([torch.zeros(3, 5, 7), torch.rand(3, 5, 7) + 1])
    live, alone = Live(Exhibit(network, images)), Live(Exhibit(network.layer, images))
    assert live.rows(RowsRequest(0, 1, (2.0, 3.0))) == alone.rows(RowsRequest(0, 1, (2.0, 3.0)))
    assert live.map_bytes == alone.map_bytes
    stored, single = build_scene(Exhibit(network, images)), build_scene(Exhibit(network.layer, images))
    assert [layer["name"] for layer in stored.header["networks"][0]["layers"]] == ["layer"]
    assert stored.tensors.keys() == single.tensors.keys()
    assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in single.tensors.items())


def test_a_network_that_fails_on_an_image_is_told():
    images = torch.stack([torch.zeros(3, 5, 7), torch.full((3, 5, 7), 3.0)])
    live = Live(Exhibit(_Fickle().eval(), images))
    with pytest.raises(RefusedError, match=r"the network does not take this image: .*ValueError: too bright") as caught:
        live.rows(RowsRequest(0, 1, (0.0, 0.0)))
    assert caught.value.status == 422
    live.rows(RowsRequest(0, 0, (0.0, 0.0)))


def test_threads_that_show_one_network_do_not_mix_up_what_they_read():
    exhibit = _exhibit()
    flags = [module.training for module in exhibit.network.modules()]
    wanted = build_scene(exhibit).to_bytes()
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(lambda: build_scene(exhibit).to_bytes()) for _ in range(6)]
    assert all(one.result() == wanted for one in made)
    assert [module.training for module in exhibit.network.modules()] == flags
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in exhibit.network.modules())
