"""`view`: what it takes, and the page that stands in the notebook."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from convattn import AttentionNet, view
from convattn.errors import ArgumentError
from convattn.viewer import Exhibit, SceneSizeError, build_scene, notebook
from convattn.viewer.notebook import NotebookPage
from convattn.viewer.page import page_html

IMAGES = torch.rand(3, 3, 10, 14, generator=torch.Generator().manual_seed(0))


def _network(**options):
    return AttentionNet(width=8, depth=2, heads=4, ffn=8, **options).eval()


def _exhibit(name="network"):
    return Exhibit(_network(content=True), IMAGES, name=name)


def _page(*exhibits, **options):
    return page_html(build_scene(exhibits, **options))


def test_a_network_without_images_is_refused():
    with pytest.raises(
        ArgumentError,
        match="images are missing: give the prepared images that the network is to see",
    ):
        view(_network())


@pytest.mark.parametrize(
    "shown", [_exhibit(), [_exhibit("one"), _exhibit("other")]], ids=["one", "two"]
)
@pytest.mark.parametrize(
    "given", [{"images": IMAGES}, {"mean": (0, 0, 0)}, {"std": (1, 1, 1)}, {"layers": ("a",)}]
)
def test_exhibits_bring_all_that_is_of_one_network(shown, given):
    with pytest.raises(
        ArgumentError, match="images, mean, std and layers must be left out, because exhibits bring"
    ):
        view(shown, **given)


def test_chosen_layers_and_a_title_are_shown():
    network, layers = _network(), ("blocks.1.mixer",)
    shown = view(network, IMAGES, mean=(0, 0, 0), std=(1, 1, 1), layers=list(layers), title="Here")
    assert repr(shown) == "<attention maps: Here>"
    assert len(repr(replace(shown, title="x" * 10_000))) < 100
    exhibit = Exhibit(network, IMAGES, mean=(0, 0, 0), std=(1, 1, 1), layers="*.1.mixer")
    assert shown.page == _page(exhibit, title="Here")


def test_exhibits_are_shown_side_by_side():
    shown = [_exhibit("one"), _exhibit("other")]
    assert view(shown).page == _page(*shown)
    assert view(shown[0]).page == _page(shown[0])


def test_a_page_that_is_too_large_is_refused(monkeypatch):
    exhibit = _exhibit()
    size = sum(tensor.nbytes for tensor in build_scene(exhibit).tensors.values())
    monkeypatch.setattr(notebook, "LARGEST", size)
    view(exhibit)
    monkeypatch.setattr(notebook, "LARGEST", size - 1)
    with pytest.raises(SceneSizeError, match="take fewer images, or name the layers to show"):
        view(exhibit)


def test_the_page_in_a_notebook_is_whole_and_sees_nothing_around_it():
    page = "<p title='a'>page & \"text\"</p>"
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(NotebookPage("A page", page)._repr_html_())
    [(tag, attributes)] = tags
    assert (tag, attributes["srcdoc"]) == ("iframe", page)
    assert "allow-same-origin" not in attributes["sandbox"]
