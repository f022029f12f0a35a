"""Networks and certificates that a folder could not bring back are refused before it is made."""

import json
import re

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import prune

from convattn import (
    analyze,
    attention_to_conv,
    conv_to_attention,
    freeze,
    load_network,
    network_to_attention,
    network_to_conv,
    replace_heads,
    save_network,
)
from convattn.convert.certificate import NetworkCertificate
from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError
from convattn.models import ConvNet
from convattn.networks.differences import differences
from convattn.networks.replaced import describe_layers
from convattn.structure import Structure


def test_replaced_heads_are_neither_saved_nor_read_again(tmp_path):
    torch.manual_seed(0)
    network, images = (
        timm.create_model("test_vit", num_classes=3).eval(),
        torch.randn(8, 3, 160, 160),
    )
    report = analyze(network, images, controls=(), progress=False)
    made, _ = replace_heads(network, report, heads=[("blocks.0.attn", 0)])
    with pytest.raises(
        UnsupportedModelError,
        match=r"blocks\.0\.attn.* was made by replace_heads.*state_dict",
    ):
        save_network(made, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []
    found = analyze(made, images, controls=(), progress=False)
    assert "blocks.0.attn" not in {layer.name for layer in found.layers}
    assert (
        "blocks.0.attn.tokens: its heads were replaced; read the network before"
        in found.not_covered
    )
    every = [(layer.name, head.head) for layer in report.layers for head in layer.measured.heads]
    made, _ = replace_heads(network, report, heads=every)
    with pytest.raises(
        UnsupportedModelError,
        match=r"blocks\.0\.attn\.tokens \(.*\): its heads were replaced; read the",
    ):
        analyze(made, images, controls=(), progress=False)


def test_a_frozen_network_is_not_saved(tmp_path):
    images = torch.zeros(1, 2, 7)
    made, _ = network_to_attention(nn.Sequential(nn.Conv1d(2, 3, 5)), sharpness=3.0, images=images)
    frozen = freeze(made, images)
    for network, name in ((frozen, "0"), (frozen[0], "the network itself")):
        with pytest.raises(
            UnsupportedModelError, match=f"{name} is frozen and has no weights of its own"
        ):
            save_network(network, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_wrapped_network_is_not_saved_under_names_that_no_builder_has(wrap, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match=r"cannot save this .*: save the network that it wraps"
    ):
        save_network(wrap(ConvNet(width=8, depth=1)), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_are_no_network_and_no_certificate_of_it_are_refused(
    tmp_path, without_type_checks
):
    small, other = nn.Sequential(nn.Conv1d(2, 3, 5)), nn.Sequential(nn.ReLU(), nn.Conv1d(2, 3, 5))
    images = torch.zeros(1, 2, 7)
    attention, certificate = network_to_attention(small, images=images)
    back, certificate_back = network_to_conv(attention, images=images)
    _, of_other = network_to_attention(other, images=images)
    message = "certificate must be that of this Sequential as it is now, but is of another network"
    for network, given, expected in (
        ((attention, certificate), None, "network must be an nn.Module, but is of type tuple"),
        (attention, "passed", "certificate must be what the conversion returned, but is 'passed'"),
        (attention, of_other, message),
        (attention, certificate_back, message),
        (back, certificate, message),
    ):
        with pytest.raises(ArgumentError, match=expected):
            save_network(network, tmp_path / "made", certificate=given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": None}, "network must be an nn.Module, but is of type NoneType"),
        ({"folder": None}, "folder must be a path, but is None"),
        ({"folder": "x" * 300}, "folder cannot be made: File name too long"),
        ({"source": 3}, 'source must be "timm:NAME" or "torchvision:NAME", but is 3'),
        ({"source": "resnet18"}, 'source must be "timm:NAME"'),
        ({"source": "tim:resnet18"}, "unknown source 'tim': did you mean 'timm'"),
        (
            {"source": "timm:resnet10t", "options": {"act_layer": nn.ReLU}},
            "options must be a dict of JSON types",
        ),
        (
            {"source": "timm:resnet10t", "options": 3},
            "options must be a dict of JSON types: .*, but is 3",
        ),
        (
            {"source": "timm:resnet10t", "options": {"sizes": (3, 5)}},
            r"options must be a dict of JSON types: .*, but is \{'sizes': \(3, 5\)\}",
        ),
        ({"options": {"num_classes": 3}}, "options must be None without a source"),
        (
            {"network": ConvNet(width=8, depth=1), "options": {"width": 3}},
            "options must be None without a source",
        ),
        (
            {"options": [1]},
            r"options must be None without a source, whose builder takes them, but is \[1\]",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, without_type_checks):
    given = {"network": nn.Sequential(nn.Conv1d(2, 3, 5)), "folder": tmp_path / "made", **arguments}
    with pytest.raises(ArgumentError, match=message):
        save_network(given.pop("network"), given.pop("folder"), **given)
    assert list(tmp_path.iterdir()) == []


class ResNet(nn.Module):
    """A class that has the name of another."""


def test_two_classes_of_one_name_are_told_apart(tmp_path):
    message = (
        r"the network itself is a \S*test_saving_refused.ResNet, not a timm.models.resnet.ResNet"
    )
    with pytest.raises(UnsupportedModelError, match=message):
        save_network(ResNet(), tmp_path / "made", source="timm:resnet10t")


class Remembering(nn.Conv1d):
    """A layer with state that is no tensor."""

    def get_extra_state(self):
        return {"calls": 3}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Remembering(2, 3, 5), "its 1._extra_state is a dict and no tensor"),
        (lambda: nn.LazyLinear(3), "its 1.weight is lazy and not initialised"),
        (
            lambda: nn.Conv1d(2, 3, 5, device="meta"),
            "its 1.weight is on the meta device and has no values",
        ),
    ],
)
def test_state_that_a_file_of_tensors_cannot_hold_is_refused(make, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        save_network(nn.Sequential(nn.Conv1d(2, 2, 3), make()), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_in_two_places_is_described_once():
    twice = nn.Conv1d(2, 2, 3, padding=1)
    (description,) = describe_layers(nn.Sequential(twice, nn.ReLU(), twice))
    assert description["names"] == ["0", "2"]


def test_a_module_that_only_one_network_has_is_a_difference():
    def network(last):
        made = nn.Sequential(nn.Conv1d(2, 2, 1))
        made.register_module("last", last)
        return made

    less, more = network(None), network(nn.Linear(3, 5))
    less, more = Structure.of(network(None)).modules, Structure.of(network(nn.Linear(3, 5))).modules
    linear = "last (a torch.nn.modules.linear.Linear)"
    assert list(differences(less, Structure.of(network(None)).modules)) == []
    assert [str(found) for found in differences(more, less)] == [f"{linear} is added"]
    assert [str(found) for found in differences(less, more)] == [f"{linear} is missing"]


def test_the_hook_of_a_layer_comes_with_the_model_that_is_given(tmp_path):
    def observed():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
        network[0].register_forward_hook(observe)
        return network

    def observe(*_):
        seen.append(True)

    seen, images = [], torch.randn(2, 3, 5, 7)
    made, certificate = network_to_attention(observed(), images=images)
    save_network(made, tmp_path / "made", certificate=certificate)
    loaded = load_network(tmp_path / "made", model=observed())
    seen.clear()
    assert torch.equal(loaded(images), made(images))
    assert len(seen) == 2
    other = observed()
    other[0]._forward_hooks.clear()
    message = r"0\.forward hook \(.*observe\) is missing\. Build model as"
    with pytest.raises(CheckpointError, match=message):
        load_network(tmp_path / "made", model=other)
    assert torch.equal(
        load_network(tmp_path / "made", model=other, verify=False)(images), made(images)
    )


def inside(change):
    """Makes a converted network of one's own, and changes what is inside its layer."""
    made, _ = network_to_attention(
        nn.Sequential(nn.Conv1d(2, 3, 5), nn.ReLU()), images=torch.randn(2, 2, 7)
    )
    change(made[0].values)
    return made


UNDO = r": first call torch\.nn\.utils\."
AT = r'\(network\.get_submodule\(.{place}values.\), "weight"\)$'
INSIDE = {
    "hook": (
        lambda part: part.register_forward_hook(doubled),
        "forward hook .*doubled.* is added$",
    ),
    "early hook": (lambda part: part.register_forward_pre_hook(doubled), "forward hook .*added$"),
    "method": (lambda part: setattr(part, "forward", doubled), r"forward \(.*doubled\) is added$"),
    "attribute": (lambda part: setattr(part, "groups", 2), r"groups is 2, not 1$"),
    "pruned": (
        lambda part: prune.l1_unstructured(part, "weight", 0.5),
        f"forward hook .* is added{UNDO}prune.remove{AT}",
    ),
    "weight norm": (
        nn.utils.parametrizations.weight_norm,
        rf"weight .* is missing{UNDO}parametrize\.remove_parametrizations{AT}",
    ),
    "earlier weight norm": (
        nn.utils.weight_norm,
        f"forward hook .* is added{UNDO}remove_weight_norm{AT}",
    ),
    "spectral norm": (
        nn.utils.spectral_norm,
        f"forward hook .* is added{UNDO}remove_spectral_norm{AT}",
    ),
}


def doubled(*_):
    """Computes something else."""


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(("change", "message"), INSIDE.values(), ids=INSIDE)
def test_a_layer_that_was_changed_inside_is_not_saved(change, message, tmp_path):
    made = inside(change)
    for network, place in ((made, "0."), (made[0], "")):
        at = place or "the network itself"
        words = message.replace("{place}", re.escape(place))
        where = re.escape(f"{at.removesuffix('.')} would not come back as it is, because {place}")
        with pytest.raises(UnsupportedModelError, match=f"{where}values\\.{words}"):
            save_network(network, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", [name for name in INSIDE if "norm" in name or name == "pruned"])
def test_the_line_to_type_makes_the_layer_one_that_is_saved(name, tmp_path):
    network, images = inside(INSIDE[name][0]).eval(), torch.randn(2, 2, 7)
    with pytest.raises(UnsupportedModelError) as refused:
        save_network(network, tmp_path / "made")
    expected = network(images)
    exec(str(refused.value).partition("first call ")[2], {"torch": torch, "network": network})
    folder = save_network(network, tmp_path / "made")
    model = nn.Sequential(nn.Conv1d(2, 3, 5), nn.ReLU())
    assert torch.equal(load_network(folder, model=model)(images), expected)


def trained(module):
    """Changes the last weight, as one step of training does."""
    with torch.no_grad():
        [*module.parameters()][-1].add_(1e-3)


@pytest.mark.parametrize("direction", ["to attention", "to conv"])
def test_a_certificate_of_other_weights_is_refused(direction, tmp_path):
    images = torch.randn(2, 2, 7)
    made, certificate = network_to_attention(
        nn.Sequential(nn.Conv1d(2, 3, 5), nn.Conv1d(3, 4, 1)), images=images
    )
    if direction == "to conv":
        made, certificate = network_to_conv(made, images=images)
    folder = save_network(made, tmp_path / "same", certificate=certificate)
    assert NetworkCertificate.load(folder / "certificate.json") == certificate
    trained(made)
    with pytest.raises(
        ArgumentError, match="certificate must be that of this Sequential as it is now"
    ):
        save_network(made, tmp_path / "other", certificate=certificate)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("direction", ["to attention", "to conv"])
def test_the_certificate_of_a_layer_is_that_of_its_weights(direction, tmp_path):
    made, certificate = conv_to_attention(nn.Conv1d(2, 3, 5))
    if direction == "to conv":
        made, certificate = attention_to_conv(made)
    network = nn.Sequential(made, nn.ReLU())
    save_network(made, tmp_path / "layer", certificate=certificate)
    save_network(network, tmp_path / "network", certificate=certificate)
    trained(made)
    for changed in (made, network):
        message = f"certificate must be that of this {type(changed).__name__} as it is now"
        with pytest.raises(ArgumentError, match=message):
            save_network(changed, tmp_path / "again", certificate=certificate)


def test_the_card_counts_the_layers_that_are_described(tmp_path):
    own = nn.Sequential(nn.Conv1d(2, 3, 5), nn.ReLU(), nn.Conv1d(3, 4, 1))
    made, certificate = network_to_attention(own, images=torch.randn(2, 2, 7), exclude="2")
    folder = save_network(made, tmp_path / "made", certificate=certificate)
    card = (folder / "README.md").read_text()
    assert "`config.json` describes 1 `Conv1d`, 1 `RelativeAttention1d` of it." in card


def test_of_a_known_source_only_what_differs_from_a_new_network_is_described(tmp_path):
    network = ConvNet(width=8, depth=2, ffn=8).eval()
    images = torch.randn(1, 3, 8, 8)
    made, _ = network_to_attention(network, include="blocks.1.*", images=images)
    for saved, names in ((network, []), (made, [["blocks.1.mixer"]])):
        folder = save_network(saved, tmp_path / str(len(names)))
        layers = json.loads((folder / "config.json").read_text())["layers"]
        assert [layer["names"] for layer in layers] == names


OTHER_LAYERS = {
    "encoding": lambda made: setattr(made[0], "encoding", made[0].encoding.soften(8.0)),
    "padding": lambda made: setattr(made[2], "padding", (2,)),
    "class": lambda made: made.__setitem__(1, nn.GELU()),
    "epsilon": lambda made: setattr(made[3], "eps", 1e-2),
}


@pytest.mark.parametrize("change", OTHER_LAYERS.values(), ids=OTHER_LAYERS)
def test_a_certificate_of_another_configuration_is_refused(change, tmp_path):
    network = nn.Sequential(
        nn.Conv1d(2, 3, 5), nn.ReLU(), nn.MaxPool1d(3, padding=1), nn.BatchNorm1d(3)
    )
    made, certificate = network_to_attention(network, images=torch.randn(2, 2, 17))
    change(made)
    with pytest.raises(
        ArgumentError, match="certificate must be that of this Sequential as it is now"
    ):
        save_network(made, tmp_path / "other", certificate=certificate)
