"""scripts/walks.py counts the ways through the library."""

import runpy
from pathlib import Path

import pytest

import convattn
from convattn.models import ResNet

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(convattn, "resnet18", lambda: ResNet(2, width=8))  # the same walk, in less time
    SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "walks.py"))


@pytest.mark.parametrize("name", SCRIPT["WALKS"])
def test_walk_is_counted(name):
    walk = SCRIPT["take"](SCRIPT["WALKS"][name])
    assert 0 < len(walk.files) <= walk.stays <= len(walk.functions) <= walk.frames
    assert walk.types
    assert name in SCRIPT["table"]({name: walk})


def test_only_what_is_ours_is_counted():
    take, layer = SCRIPT["take"], SCRIPT["nn"].Conv2d(3, 5, 3)
    walk = take(lambda: layer(SCRIPT["torch"].zeros(1, 3, 7, 7)))
    assert (walk.frames, walk.files, walk.types) == (0, set(), set())


def test_frames_and_types_are_those_of_the_call():
    encoding = SCRIPT["RelativeAttention2d"](3, 5, num_heads=9, encoding="shift").encoding
    walk = SCRIPT["take"](lambda: encoding.displacements)
    assert (walk.frames, [kind.__name__ for kind in walk.types]) == (1, ["Shift"])
