"""Two hundred wrong calls, drawn with a seed: each ends in an error of this library and leaves nothing behind."""

import random

import pytest
import timm
import torch
from torch import nn

from convattn import ConvAttnError, ConvNet, analyze
from convattn.layers import RelativeAttention2d

CALLS = 200


def vit(**options):
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3, **options)


class Raising(nn.Module):
    """Attends, and then fails."""

    def __init__(self):
        super().__init__()
        self.attend = RelativeAttention2d(3, 3, 2, "quadratic")

    def forward(self, x):
        self.attend(x)
        raise RuntimeError("out of luck")


NETWORKS = {
    "vit": vit,
    "own": lambda: RelativeAttention2d(3, 3, 4, "quadratic"),
    "raising": Raising,
    "convolutions": lambda: ConvNet(width=8, depth=1, ffn=8),
    "channels": lambda: timm.create_model("xcit_nano_12_p16_224", num_classes=3),
    "empty": nn.Identity,
    "meta": lambda: vit().to("meta"),
    "no network": lambda: "vit",
}
IMAGES = {
    "right": lambda _: torch.randn(3, 3, 32, 32),
    "grey": lambda _: torch.randn(3, 1, 32, 32),
    "four channels": lambda _: torch.randn(3, 4, 32, 32),
    "size": lambda draw: torch.randn(2, 3, draw.randint(1, 50), draw.randint(1, 50)),
    "none": lambda _: torch.randn(0, 3, 32, 32),
    "no pixels": lambda _: torch.randn(2, 3, 0, 32),
    "flat": lambda draw: torch.randn(draw.randint(1, 9)),
    "two axes": lambda _: torch.randn(2, 32),
    "five axes": lambda _: torch.randn(2, 3, 3, 32, 32),
    "nan": lambda _: torch.full((3, 3, 32, 32), torch.nan),
    "inf": lambda _: torch.full((3, 3, 32, 32), torch.inf),
    "bytes": lambda _: torch.zeros(3, 3, 32, 32, dtype=torch.uint8),
    "doubles": lambda _: torch.zeros(3, 3, 32, 32, dtype=torch.float64),
    "meta": lambda _: torch.randn(2, 3, 32, 32, device="meta"),
    "list": lambda draw: [torch.randn(3, 32, 32), torch.randn(3, draw.randint(1, 31), 32)],
    "strings": lambda _: ["a.png", "b.png"],
    "path": lambda _: "images",
    "nothing": lambda _: None,
    "empty list": lambda _: [],
}
OPTIONS = [
    {"layers": ["gone"]},
    {"layers": []},
    {"layers": "attend"},
    {"kernel_size": 0},
    {"kernel_size": 4},
    {"kernel_size": 2.5},
    {"radius": -1},
    {"controls": ["gone"]},
    {"controls": "untrained weights"},
]


def draw_call(draw):
    """Draws a call with at least one mistake."""
    network = draw.choice(["vit", "own", "raising", *NETWORKS])
    images = draw.choice([*IMAGES, "right"])
    option = draw.choice(OPTIONS) if images == "right" and network in ("vit", "own") else draw.choice([{}, *OPTIONS])
    return network, images, option


def accepted(network, images, option):
    """Calls that are no mistake: our own layer takes images of any size; torch's mean of doubles is refused."""
    return network == "own" and images == "size" and not option


@pytest.mark.slow
def test_wrong_calls_end_in_clear_errors_and_leave_nothing_behind(without_type_checks):
    draw = random.Random(0)
    torch.manual_seed(0)
    built = {}
    for _ in range(CALLS):
        name, images, option = draw_call(draw)
        network = built.setdefault(name, NETWORKS[name]())
        given = IMAGES[images](draw)
        what = (name, images, option)
        modules = list(network.modules()) if isinstance(network, nn.Module) else []
        before = [(module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for module in modules]
        error = None
        try:
            analyze(network, given, **{"controls": (), "progress": False, **option})
        except ConvAttnError as raised:
            error = raised
        assert (error is None) == accepted(*what), (what, error)
        assert error is None or 10 < len(str(error)) < 800, (what, error)
        after = [(module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for module in modules]
        assert before == after, what
