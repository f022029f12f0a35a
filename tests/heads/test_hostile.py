"""Two hundred wrong calls, drawn with a seed: each ends in an error of this library and leaves nothing behind."""

import io
import random

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from convattn import ConvAttnError, ConvNet, analyze
from convattn.layers import RelativeAttention2d
from convattn.networks.images import open_images

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


def cut(content, draw):
    """Returns the first part of a file, at most half of it."""
    return content[: draw.randint(0, len(content) // 2)]


def picture(kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
        file, kind
    )
    return file.getvalue()


def array():
    file = io.BytesIO()
    np.save(file, np.zeros((3, 3, 32, 32), dtype=np.float32))
    return file.getvalue()


FILES = {
    "cut picture": ("a/b.png", lambda draw: cut(picture(), draw)),
    "cut photograph": ("a/b.jpg", lambda draw: cut(picture("JPEG"), draw)),
    "text for a picture": ("a/b.png", lambda _: b"no picture"),
    "no picture in the folder": ("a/b.txt", lambda _: b"text"),
    "cut array": ("b.npy", lambda draw: cut(array(), draw)),
    "text for an array": ("b.npy", lambda _: b"no array"),
    "another ending": ("b.txt", lambda _: b"text"),
}
"""Damaged or wrong files: where, and what is in them. Folders are opened whole."""


def prepare(found):
    return torch.from_numpy(np.array(found)).movedim(2, 0).float()


def write(name, draw, folder):
    """Writes one of `FILES`; returns the file, or its folder."""
    place, make = FILES[name]
    path = folder / str(draw.randrange(10**9)) / place
    path.parent.mkdir(parents=True)
    path.write_bytes(make(draw))
    return path if path.parent.name != "a" else path.parent


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
    images = draw.choice([*IMAGES, *FILES, "right"])
    option = (
        draw.choice(OPTIONS)
        if images == "right" and network in ("vit", "own")
        else draw.choice([{}, *OPTIONS])
    )
    return network, images, option


def accepted(network, images, option):
    """Calls that are no mistake: our own layer takes images of any size; torch's mean of doubles is refused."""
    return network == "own" and images == "size" and not option


def state(network):
    """Returns everything that a call must leave as it is."""
    modules = list(network.modules()) if isinstance(network, nn.Module) else []
    flags = [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
        for module in modules
    ]
    wanted = [
        parameter.requires_grad
        for module in modules
        for parameter in module.parameters(recurse=False)
    ]
    return flags, wanted, torch.is_grad_enabled(), torch.get_rng_state().tolist(), random.getstate()


@pytest.mark.slow
def test_wrong_calls_end_in_clear_errors_and_leave_nothing_behind(without_type_checks, tmp_path):
    draw = random.Random(0)
    torch.manual_seed(0)
    built = {}
    seen = set()
    for _ in range(CALLS):
        name, images, option = draw_call(draw)
        network = built.setdefault(name, NETWORKS[name]())
        if isinstance(network, nn.Module):
            network.train(draw.random() < 0.5)
        given = write(images, draw, tmp_path) if images in FILES else IMAGES[images](draw)
        what = (name, images, option)
        before = state(network)
        error = None
        try:
            opened = open_images(given, lambda: prepare) if images in FILES else given
            analyze(network, opened, **{"controls": (), "progress": False, **option})
        except ConvAttnError as raised:
            error = raised
        assert (error is None) == accepted(*what), (what, error)
        assert error is None or 10 < len(str(error)) < 800, (what, error)
        assert before == state(network), what
        seen.add(images)
    assert seen == {*IMAGES, *FILES}
