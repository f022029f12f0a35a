"""What stands beside a network: its layers, its images, and where its weights come from."""

from functools import partial

import numpy as np
import pytest
import torch

from convattn.cli.network_options import NetworkOptions
from convattn.convert import network_to_attention, network_to_conv
from convattn.errors import ArgumentError
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.models import AttentionNet
from convattn.networks import load_network, save_network
from convattn.viewer.exhibition import Exhibition, gather

SMALL = "convattn:cifar10-small"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The working folder, with three prepared images."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 8), np.float32)
    np.save("images.npy", images)
    return tmp_path


def shown(place, source, *, weights: bool = False, **options) -> Exhibition:
    """Gathers a network and what is beside it, on one of the images."""
    options = {"images": place / "images.npy", "limit": 1} | options
    sources = [source, *options.get("compare", ())]
    load = partial(NetworkOptions(random_weights=weights).load, beside=sources)
    return gather(source, load=load, **options)


def saved(name: str, **options) -> str:
    torch.manual_seed(0)
    options = {"width": 8, "depth": 2, "heads": 4, "ffn": 8, "image_size": 8} | options
    save_network(AttentionNet("quadratic", **options), name)
    return name


def test_chosen_layers_are_shown_of_every_network_that_has_them(place):
    """The page compares layers by their place."""
    one, other, shallow = saved("one"), saved("other", heads=5), saved("shallow", depth=1)
    layers = ["blocks.1.mixer"]
    compare = ["untrained", "converted", other, shallow]
    exhibits = shown(place, one, layers=["*.1.mixer"], compare=compare).exhibits
    assert [exhibit.layers for exhibit in exhibits] == [*[tuple(layers)] * 4, None]
    note = exhibits[-1].note
    assert note == "All its layers are shown, because it has no blocks.1.mixer."


def test_a_network_stands_beside_once(place):
    """Said before anything is loaded or converted."""
    with pytest.raises(ArgumentError, match=r"^compare must be different networks, each once"):
        gather("nothing", compare=["converted", "converted"])


def test_a_network_whose_classes_are_not_known_has_none(place):
    """Those of the network that it is compared with are not its own."""
    first, second = shown(place, SMALL, images=None, limit=1).exhibits[0], saved("other")
    beside = shown(place, SMALL, compare=[second]).exhibits[1]
    assert len(first.classes) == 10
    assert beside.classes == ()


@pytest.mark.parametrize("built_first", [True, False])
def test_weights_are_for_the_networks_that_take_them(place, built_first):
    sources = ["convattn:AttentionNet", saved("saved")]
    first, second = sources if built_first else sources[::-1]
    exhibits = shown(place, first, weights=True, compare=[second]).exhibits
    notes = ["Its weights are random, drawn with seed 0.", ""]
    assert [exhibit.note for exhibit in exhibits] == (notes if built_first else notes[::-1])


def test_colours_are_for_networks_whose_own_are_unknown(place):
    half = (0.5, 0.5, 0.5)
    options = NetworkOptions(random_weights=True, mean=half, std=half)
    beside = ["timm:vit_tiny_patch16_224"]
    assert options.load(saved("one"), beside=beside).colours == (half, half)
    assert options.load(SMALL, beside=beside).colours is None


def test_weights_that_no_network_takes_are_refused(place):
    with pytest.raises(ArgumentError, match="--random-weights is for a network of another library"):
        shown(place, saved("saved"), weights=True, compare=[SMALL])


def test_the_limit_is_for_every_kind_of_images(place):
    np.save("many.npy", np.zeros((9, 3, 32, 32), np.float32))
    many = place / "many.npy"
    for images, limit, count in ((None, None, 20), (None, 4, 4), (many, None, 8)):
        exhibition = shown(place, SMALL, images=images, limit=limit)
        assert len(exhibition.exhibits[0].images) == len(exhibition.names) == count
        assert len(exhibition.labels) == (count if images is None else 0)


@pytest.mark.parametrize(
    ("hard", "size", "note", "taps"),
    [
        (["*"], None, "Converted to convolutions, and back", [25, 25]),
        (["blocks.0.mixer"], None, "convolutions, of 3 × 3 where heads are not hard", [25, 9]),
        (["*"], 7, "Converted to convolutions of 7 × 7, and back", [49, 49]),
    ],
)
def test_hard_heads_keep_their_taps_unless_a_size_is_given(place, hard, size, note, taps):
    network = load_network(saved("soft"))
    convolutions, _ = network_to_conv(network, kernel_size=5, include=hard)
    attention, _ = network_to_attention(convolutions)
    save_network(attention, "hard")
    exhibit = shown(place, "hard", compare=["converted"], kernel_size=size).exhibits[1]
    assert note in exhibit.note
    layers = [one for one in exhibit.network.modules() if isinstance(one, RelativeAttention)]
    assert [layer.num_heads for layer in layers] == taps


def test_images_that_keep_their_class_are_counted(place):
    x = np.random.default_rng(0).standard_normal((23, 3, 8, 8), np.float32)
    np.save("images.npy", x)
    network = load_network(saved("network", initializer_range=0.2))
    with torch.no_grad():
        # so that no class is that of all images
        network.head.bias -= network(torch.from_numpy(x)).mean(0)
    save_network(network, "centred")
    exhibits = shown(place, "centred", limit=23, compare=["converted"]).exhibits
    before, after = (exhibit.network(exhibit.images).argmax(1) for exhibit in exhibits)
    same = int((before == after).sum())
    assert 0 < same < 23
    assert f" The class is the same for {same} of 23 images." in exhibits[1].note


def test_a_layer_scores_no_classes_and_has_no_untrained_copy(place):
    save_network(RelativeAttention2d(3, 5, num_heads=4, encoding="quadratic"), "layer")
    first, converted = shown(place, "layer", compare=["converted"]).exhibits
    assert converted.note == "Converted to convolutions of 3 × 3, and back: every head is one tap."
    assert (first.network.num_heads, converted.network.num_heads) == (4, 9)
    message = "untrained builds the network anew, and nothing says what builds a RelativeAttention2"
    with pytest.raises(ArgumentError, match=message):
        shown(place, "layer", compare=["untrained"])


def test_a_network_without_attention_is_shown_by_its_converted_copy_alone(place):
    torch.manual_seed(0)
    save_network(SpeedNet("conv", widths=[5]).eval(), "convolutions")
    (exhibit,) = shown(place, "convolutions", limit=2, compare=["converted"]).exhibits
    assert (exhibit.name, exhibit.title) == ("converted", "convolutions, converted")
    assert exhibit.layers is None
    assert exhibit.note == (
        "Its convolutions as attention: every head is one tap. The class is the same for 2 of 2 images."
    )
    with pytest.raises(ArgumentError, match="kernel_size needs attention of this library"):
        shown(place, "convolutions", limit=1, compare=["converted"], kernel_size=7)


def test_the_untrained_copy_computes_as_the_network_does(place):
    network = load_network(saved("one")).double()
    save_network(network, "double")
    first, copy = shown(place, "double", compare=["untrained"]).exhibits
    assert first.images.dtype == torch.float64
    assert copy.network(first.images).dtype == torch.float64


def test_the_untrained_copy_is_the_same_each_time_and_small(place):
    """Whatever random numbers came before; every weight is one of 16 bits."""
    source = saved("one")
    copies = []
    for seed in (5, 7):
        torch.manual_seed(seed)
        copy = shown(place, source, compare=["untrained"]).exhibits[1].network
        copies.append(copy.state_dict())
    assert sorted(copies[0]) == sorted(load_network(source).state_dict())
    for name, weight in copies[0].items():
        assert torch.equal(weight, copies[1][name])
        assert torch.equal(weight, weight.half().float())
