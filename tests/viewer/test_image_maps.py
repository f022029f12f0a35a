"""Rows that the page shows against the weights that the library reads: maps, windows, prefix tokens, content."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.viewer.node import run_node
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.functional import attention_weights, pad_keys
from convattn.functional.reference import position_weights, scores_of_images
from convattn.heads.catalogue import register_attention
from convattn.heads.layout import AttentionCall, Layout
from convattn.heads.reading import watch
from convattn.layers import Content, RelativeAttention2d
from convattn.viewer import Exhibit, Scene, build_scene
from convattn.viewer.image_maps import encode_rows

timm = pytest.importorskip("timm")

ALL = list(product((0, 5, 30, 63), (1, 16, 47)))
FIRST_PREFIX = {"prefix": 0}


def _vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=(48, 64), depth=2, embed_dim=24, num_heads=3, reg_tokens=2
    )


def _swin() -> nn.Module:
    return timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=(64, 64),
        embed_dim=12,
        depths=(2, 2),
        num_heads=(2, 3),
        window_size=4,
    )


class _Own(nn.Module):
    """Layers with content: added scores with stride and padding, and a gate that subtracts content."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"kernel_size": 3, "stride": (2, 3), "padding": (1, 2)}
        self.added = RelativeAttention2d(
            3, 4, num_heads=2, encoding="quadratic", content=Content(key_width=5), **shape
        )
        self.gated = RelativeAttention2d(4, 4, num_heads=3, encoding="sinusoidal", gate="tanh")
        self.placed = RelativeAttention2d(4, 2, num_heads=4, encoding="distance")
        with torch.no_grad():
            self.gated.gate.copy_(torch.tensor([-0.5, 0.0, 0.7]))

    def forward(self, x: Tensor) -> Tensor:
        return self.placed(self.gated(self.added(x)))


class _Masked(nn.Module):
    """Pixels see the bright ones alone, which differ between images."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).mT[:, None]
        bright = tokens[..., 0][..., None, :] > 0
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=bright)


def test_masks_that_differ_between_images_are_refused():
    """The second image would be shown behind the mask of the first."""
    register_attention(_Masked, lambda call: call.global_layout((4, 5)))
    network, images = nn.Sequential(_Masked()), torch.randn(2, 3, 4, 5)
    with pytest.raises(UnsupportedModelError, match=r"^0: what it sees differs between images"):
        build_scene(Exhibit(network, images))
    assert build_scene(Exhibit(network, images[1:])).header["images"]


NETWORKS = {"vit": (_vit, (48, 64)), "swin": (_swin, (64, 64)), "own": (_Own, (13, 17))}


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_the_weights_within_the_rounding_of_bytes(name, tmp_path):
    torch.manual_seed(1)
    make, size = NETWORKS[name]
    network, images = make().eval(), torch.randn(2, 3, *size)
    scene = build_scene(Exhibit(network, images))
    first, second = (_calls(network, image[None]) for image in images)
    asked = [_asked(FIRST_PREFIX, 1)]
    for query in ALL:
        asked += [_asked(query, 1), _asked(query, "mean")]
    met = set()
    for rows in _ask(scene, asked, tmp_path):
        one, layer = asked[rows["asked"]], scene.header["networks"][0]["layers"][rows["layer"]]
        name, query = layer["name"], rows["query"]
        layout, weights = second[name]
        if one["image"] == "mean":
            weights = (first[name][1] + weights) / 2
        if not isinstance(query, dict):
            _require_nearest(layer, one["query"], query)
        _require_row(layout, weights, _index(layer, query), rows, tmp_path)
        met.add(name)
    assert met == set(second)


def test_parts_of_layers_with_content(tmp_path):
    """Position is the softmax of its scores, content that of the others; both are what the layer uses."""
    torch.manual_seed(2)
    network, image = _Own().eval(), torch.randn(1, 3, 13, 17)
    scene = build_scene(Exhibit(network, image))
    layers = scene.header["networks"][0]["layers"]
    parts = ["both", "position", "content"]
    assert [layer["attention"].get("parts") for layer in layers] == [parts, parts, None]
    asked = [_asked([4, 9], 0, part) for part in ("position", "content")]
    answers = _ask(scene, asked, tmp_path)
    # heads of position alone have no content part
    assert [rows["layer"] for rows in answers] == [0, 1, 2, 0, 1]
    x = image
    for number, layer in enumerate((network.added, network.gated)):
        axes = layer.geometry.axes(x.shape[2:])
        by_content = scores_of_images(
            layer.content, layer.encoding, pad_keys(x, layer.geometry), axes
        )
        by_part = {
            number: position_weights(layer.encoding.table(axes), axes),
            number + 3: attention_weights(by_content)[0],
        }
        for answer, weights in by_part.items():
            rows = answers[answer]
            row = weights.detach()[:, _index(layers[number], rows["query"])]
            error = (_numbers(tmp_path / rows["weights"]).view_as(row) - row).abs().amax(-1)
            assert (error <= row.amax(-1) / 510 + 1e-6).all()
        x = layer(x)


@pytest.mark.parametrize("low", [0.0, -0.3])
def test_bytes_are_within_half_a_step(low):
    weights = torch.rand(3, 2, 5, 7) + low
    levels, scales, lows = encode_rows(weights)
    decoded = lows[..., None] + levels / 255 * scales[..., None]
    assert ((decoded - weights).abs() <= scales[..., None] / 510 + 1e-7).all()
    assert bool(lows.any()) == (low < 0)
    levels, *_ = encode_rows(torch.full((1, 2), torch.nan))
    assert levels.tolist() == [[0, 0]]


def test_a_fault_is_seen(tmp_path):
    """Rows of another image are not taken for those of this one."""
    torch.manual_seed(1)
    network, images = _vit().eval(), torch.randn(2, 3, 48, 64)
    scene = build_scene(Exhibit(network, images))
    (rows, *_) = _ask(scene, [_asked([20, 20], 0)], tmp_path)
    layer = scene.header["networks"][0]["layers"][0]
    layout, weights = _calls(network, images[1:])[layer["name"]]
    with pytest.raises(AssertionError, match="half a step"):
        _require_row(layout, weights, _index(layer, rows["query"]), rows, tmp_path)


def _asked(query: object, image: object, part: str = "both") -> dict:
    return {"query": query, "network": 0, "image": image, "part": part}


def _calls(network: nn.Module, image: Tensor) -> dict[str, tuple[Layout, Tensor]]:
    found = {}

    def note(call: AttentionCall) -> None:
        found[call.name] = (call.layout, call.weights[0].clone())

    watch(network, image, note)
    return found


def _ask(scene: Scene, asked: list[dict], folder: Path) -> list[dict]:
    (folder / "scene").write_bytes(scene.to_bytes())
    (folder / "asked.json").write_text(json.dumps(asked))
    return json.loads(run_node("ask.js", folder / "scene", folder / "asked.json", folder))


def _index(layer: dict, query: object) -> int:
    if isinstance(query, dict):
        return -1 - query["prefix"]
    return query[0] * layer["grid"][1] + query[1]


def _require_nearest(layer: dict, pixel: list[int], cell: list[int]) -> None:
    """Asserts that no cell of the layer is nearer to the pixel along an axis."""
    first, step = layer["place"]["first"], layer["place"]["step"]
    for axis in range(2):
        centres = first[axis] + step[axis] * np.arange(layer["grid"][axis])
        distances = np.abs(centres - pixel[axis])
        assert distances[cell[axis]] == distances.min()


def _require_row(layout: Layout, weights: Tensor, query: int, rows: dict, folder: Path) -> None:
    """Asserts that each key of the library is on the page's map where it stands, and nothing else is."""
    group, place = (int(n) for n in (layout.queries == query).nonzero()[0])
    weights, keys, heads = weights[group, :, place], layout.keys[group], rows["heads"]
    shown = _numbers(folder / rows["weights"]).view(heads, rows["keyRows"], rows["keyCols"]).clone()
    prefix = _numbers(folder / rows["prefix"]).view(heads, -1)
    step = (weights.amax(-1) - weights.amin(-1).clamp(max=0)) / 510 + 1e-6
    placed = layout.keys[:, ~layout.key_prefix].flatten(0, 1)
    pitch = [placed[:, axis].unique().diff().min() for axis in range(2)]
    cells = ((keys - placed.amin(0)) / torch.stack(pitch)).round().int().tolist()
    for key, (row, col) in enumerate(cells):
        if layout.allowed is not None and not layout.allowed[group, place, key]:
            continue
        if layout.key_prefix[key]:
            weight = prefix[:, int(layout.key_prefix[:key].sum())]
        else:
            weight = shown[:, row, col].clone()
            shown[:, row, col] = torch.nan
        error = (weight - weights[:, key]).abs()
        assert (error <= step).all(), "a weight is off by more than half a step"
    assert shown.isnan().all()


def _numbers(file: Path) -> Tensor:
    return torch.from_numpy(np.fromfile(file, np.float32))
