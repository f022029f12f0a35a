"""What stands beside a network: its layers, its images, and where its weights come from."""

from pathlib import Path

import numpy as np
import pytest
import torch

from convattn.cli.network_options import NetworkOptions
from convattn.convert import network_to_attention, network_to_conv, save_layer
from convattn.errors import ArgumentError
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.models import AttentionNet
from convattn.networks import load_network, save_network
from convattn.viewer.exhibition import Exhibition, gather

SMALL = "convattn:cifar10-small"


def _gather(
    source: str, *, images: Path | None = None, weights: bool = False, **options
) -> Exhibition:
    load = NetworkOptions(random_weights=weights).loader([source, *options.get("compare", ())])
    return gather(source, images, load=load, **options)


def _saved(folder: Path, name: str, **options) -> str:
    torch.manual_seed(0)
    network = AttentionNet(
        "quadratic", **({"width": 8, "depth": 2, "heads": 4, "ffn": 8, "image_size": 8} | options)
    )
    save_network(network, folder / name)
    return str(folder / name)


@pytest.fixture
def images(tmp_path):
    """Three images, prepared."""
    np.save(
        tmp_path / "images.npy", np.random.default_rng(0).standard_normal((3, 3, 8, 8), np.float32)
    )
    return tmp_path / "images.npy"


def test_chosen_layers_are_shown_of_every_network(tmp_path, images):
    """The page compares layers by their place."""
    one, other = _saved(tmp_path, "one"), _saved(tmp_path, "other", heads=5)
    shown = _gather(
        one,
        images=images,
        limit=1,
        layers=["blocks.1.mixer"],
        compare=["untrained", "converted", other],
    )
    assert [exhibit.layers for exhibit in shown.exhibits] == [("blocks.1.mixer",)] * 4


def test_a_network_without_the_chosen_layers_shows_all_and_says_so(tmp_path, images):
    one, other = _saved(tmp_path, "one"), _saved(tmp_path, "other", depth=1)
    exhibit = _gather(
        one, images=images, limit=1, layers=["blocks.1.mixer"], compare=[other]
    ).exhibits[1]
    assert exhibit.layers is None
    assert exhibit.note == "All its layers are shown, because it has no blocks.1.mixer."


@pytest.mark.parametrize("built_first", [True, False])
def test_weights_are_for_the_networks_that_take_them(tmp_path, images, built_first):
    saved, built = _saved(tmp_path, "saved"), "convattn:AttentionNet"
    sources = (built, saved) if built_first else (saved, built)
    shown = _gather(sources[0], images=images, limit=1, weights=True, compare=[sources[1]])
    drawn = [
        exhibit.note == "Its weights are random, drawn with seed 0." for exhibit in shown.exhibits
    ]
    assert drawn == [built_first, not built_first]


def test_weights_that_no_network_takes_are_refused(tmp_path, images):
    saved = _saved(tmp_path, "saved")
    with pytest.raises(ArgumentError, match="--random-weights is for a network of another library"):
        _gather(saved, images=images, limit=1, weights=True, compare=[SMALL])


def test_the_limit_is_for_every_kind_of_images(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((9, 3, 32, 32), np.float32))
    for images, limit, count in (
        (None, None, 20),
        (None, 4, 4),
        (tmp_path / "images.npy", None, 8),
    ):
        shown = _gather(SMALL, images=images, limit=limit)
        assert len(shown.exhibits[0].images) == len(shown.names) == count
        assert len(shown.labels) == (count if images is None else 0)


def _with_hard_heads(folder: Path, size: int, *, whole: bool) -> str:
    """Saves a network whose first layer, or both, were convolutions of another size than 3 × 3."""
    _saved(folder, "soft")
    network = load_network(folder / "soft")
    names = ["blocks.0.mixer", *(["blocks.1.mixer"] if whole else [])]
    made, _ = network_to_attention(network_to_conv(network, kernel_size=size, include=names)[0])
    save_network(made, folder / "hard")
    return str(folder / "hard")


@pytest.mark.parametrize(
    ("whole", "asked", "note", "taps"),
    [
        (True, None, "Converted to convolutions, and back", [25, 25]),
        (False, None, "convolutions, of 3 × 3 where heads are not hard, and back", [25, 9]),
        (True, 7, "Converted to convolutions of 7 × 7, and back", [49, 49]),
    ],
)
def test_hard_heads_keep_their_taps_unless_a_size_is_asked_for(
    tmp_path, images, whole, asked, note, taps
):
    source = _with_hard_heads(tmp_path, 5, whole=whole)
    exhibit = _gather(
        source, images=images, limit=1, compare=["converted"], kernel_size=asked
    ).exhibits[1]
    assert note in exhibit.note
    layers = [
        module for module in exhibit.network.modules() if isinstance(module, RelativeAttention)
    ]
    assert [layer.num_heads for layer in layers] == taps


def test_images_that_keep_their_class_are_counted(tmp_path):
    x = np.random.default_rng(0).standard_normal((23, 3, 8, 8), np.float32)
    np.save(tmp_path / "many.npy", x)
    torch.manual_seed(0)
    network = AttentionNet(
        "quadratic", width=8, depth=2, heads=4, ffn=8, image_size=8, initializer_range=0.2
    ).eval()
    with torch.no_grad():
        network.head.bias -= network(torch.from_numpy(x)).mean(
            0
        )  # so that no class is that of all images
    save_network(network, tmp_path / "network")
    shown = _gather(
        str(tmp_path / "network"), images=tmp_path / "many.npy", limit=23, compare=["converted"]
    )
    before, after = (exhibit.network(exhibit.images).argmax(1) for exhibit in shown.exhibits)
    same = int((before == after).sum())
    assert 0 < same < 23
    assert f" {same} of 23 images get the same class." in shown.exhibits[1].note


@pytest.fixture
def layer(tmp_path):
    """The folder of one layer, which stands for a network that scores no classes."""
    torch.manual_seed(0)
    save_layer(RelativeAttention2d(3, 5, 4, "quadratic"), tmp_path / "layer")
    return str(tmp_path / "layer")


def test_what_nothing_builds_anew_has_no_untrained_copy(layer, images):
    told = "untrained builds the network anew, and nothing says what builds a RelativeAttention2d"
    with pytest.raises(ArgumentError, match=told):
        _gather(layer, images=images, limit=1, compare=["untrained"])


def test_of_what_scores_no_classes_none_are_compared(layer, images):
    first, converted = _gather(layer, images=images, limit=1, compare=["converted"]).exhibits
    assert converted.note == "Converted to convolutions of 3 × 3, and back: every head is one tap."
    assert (first.network.num_heads, converted.network.num_heads) == (4, 9)


def test_a_network_without_attention_is_shown_by_its_converted_copy_alone(tmp_path, images):
    torch.manual_seed(0)
    save_network(SpeedNet("conv", widths=[5]).eval(), tmp_path / "convolutions")
    shown = _gather(str(tmp_path / "convolutions"), images=images, limit=2, compare=["converted"])
    (exhibit,) = shown.exhibits
    assert (exhibit.name, exhibit.title, exhibit.layers) == (
        "converted",
        "convolutions, converted",
        None,
    )
    assert (
        exhibit.note
        == "Its convolutions as attention: every head is one tap. 2 of 2 images get the same class."
    )


def test_the_untrained_copy_is_the_same_each_time_and_small(tmp_path, images):
    """Whatever random numbers came before; every weight is one of 16 bits."""
    source = _saved(tmp_path, "one")
    copies = []
    for seed in (5, 7):
        torch.manual_seed(seed)
        copies.append(
            _gather(source, images=images, limit=1, compare=["untrained"])
            .exhibits[1]
            .network.state_dict()
        )
    assert sorted(copies[0]) == sorted(load_network(source).state_dict())
    assert all(torch.equal(copies[0][name], copies[1][name]) for name in copies[0])
    assert all(torch.equal(one, one.half().float()) for one in copies[0].values())
