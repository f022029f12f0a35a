"""scripts/heads_picture.py draws the README's picture from what the layers compute."""

import runpy
from pathlib import Path

import torch

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "heads_picture.py"))


def test_hard_heads_look_at_one_pixel_each():
    maps = SCRIPT["attention"](None)
    assert torch.equal(maps.amax((1, 2)), torch.ones(9))
    assert len({head.argmax().item() for head in maps}) == 9


def test_picture_is_drawn(tmp_path):
    SCRIPT["draw"](tmp_path / "heads.svg")
    assert "<svg" in (tmp_path / "heads.svg").read_text(encoding="utf-8")
