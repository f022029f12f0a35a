"""`view`: what it takes, and what the copy holds that stands in the notebook."""

import pytest
import torch
from tests.viewer.test_server import picture

from convattn import AttentionNet, view
from convattn.errors import ArgumentError
from convattn.viewer import Exhibit, build_scene, notebook
from convattn.viewer.live import RefusedError

IMAGES = torch.rand(3, 3, 10, 14, generator=torch.Generator().manual_seed(0))

PICTURE = picture(size=(7, 5))


def _network(**options):
    return AttentionNet(width=8, depth=2, heads=4, ffn=8, **options).eval()


def _exhibit(name="network"):
    return Exhibit(_network(content=True), IMAGES, name=name)


def test_a_network_without_images_is_refused():
    with pytest.raises(ArgumentError, match="images are missing: give the prepared images that the network is to see"):
        view(_network())


@pytest.mark.parametrize("shown", [_exhibit(), [_exhibit("one"), _exhibit("other")]], ids=["one", "two"])
def test_exhibits_bring_their_images(shown):
    with pytest.raises(ArgumentError, match="images must be None, because exhibits bring theirs"):
        view(shown, IMAGES)


def test_chosen_layers_and_a_title_are_shown():
    widget = view(_network(), IMAGES, layers=["blocks.1.mixer"], title="Here", copy=False)
    assert repr(widget) == "<attention maps: Here>"
    (network,) = widget._shown._scene.header["networks"]
    assert [layer["name"] for layer in network["layers"]] == ["blocks.1.mixer"]
    assert widget._still is None


def test_exhibits_are_shown_side_by_side_with_a_copy():
    widget = view([_exhibit("one"), _exhibit("other")], title="Both")
    assert [network["name"] for network in widget._shown._scene.header["networks"]] == ["one", "other"]
    assert "<title>Both</title>" in widget._still


def test_own_pictures_are_prepared_for_every_network():
    seen = []

    def prepare(picture):
        seen.append(picture.size)
        return torch.zeros(3, 10, 14)

    shown = [_exhibit("one"), _exhibit("other")]
    view(shown, prepare=prepare, copy=False)._shown.add(PICTURE, "mine")
    assert seen == [(7, 5)] * 2
    with pytest.raises(RefusedError, match="not known how pictures are prepared"):
        view(shown, copy=False)._shown.add(PICTURE, "mine")


@pytest.mark.parametrize(("kept", "less", "images"), [(3, 0, 3), (3, 1, 1), (1, 0, 1), (1, 1, None)])
def test_a_copy_that_is_too_large_holds_the_first_image_or_is_left_out(kept, less, images, monkeypatch):
    exhibit = _exhibit()
    size = sum(tensor.nbytes for tensor in build_scene(Exhibit(exhibit.network, IMAGES[:kept])).tensors.values())
    monkeypatch.setattr(notebook, "COPY", size - less)
    copy = notebook._copy([exhibit], "Here")
    assert (copy and len(copy.header["images"])) == images


def test_a_notebook_without_room_has_the_live_page_alone(monkeypatch):
    monkeypatch.setattr(notebook, "COPY", 0)
    assert view(_network(), IMAGES)._still is None
