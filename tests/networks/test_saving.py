"""Whole networks on disk come back as they were, or are refused."""

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from tests.networks.networks import NAMED, OWN_ATTENTION, Tied, converted, images
from torch import nn

from convattn import load_network, network_to_attention, network_to_conv, save_network
from convattn.convert import conv_to_attention
from convattn.convert.certificate import NetworkCertificate
from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError
from convattn.layers import RelativeAttention2d
from convattn.models import ResNet


def assert_same_network(loaded, saved):
    """Tensors, ties, what learns, and outputs: bit for bit."""
    old, new = saved.state_dict(keep_vars=True), loaded.state_dict(keep_vars=True)
    assert [*old] == [*new]
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype
        assert new[name].stride() == tensor.stride()
        assert torch.equal(new[name], tensor)
        assert new[name].requires_grad == tensor.requires_grad
    names = [*old]
    assert [[old[a] is old[b] for a in names] for b in names] == [
        [new[a] is new[b] for a in names] for b in names
    ]
    assert not any(module.training for module in loaded.modules())


PARTS = {
    "timm, no options": ("conv1.*", "layer1.*"),
    "timm, padded by size": ("conv_stem", "blocks.0.*"),
    "torchvision": ("features.0", "features.3.*"),
}
"""The first convolutions of large networks: more of the same takes time and shows nothing else."""


@pytest.mark.parametrize(
    ("name", "impl"), [*((name, "auto") for name in NAMED), ("own resnet", "separable")]
)
def test_networks_of_known_source_come_back_bit_for_bit(name, impl, tmp_path):
    torch.manual_seed(0)
    network, source, options = NAMED[name]()
    x = images()
    made, certificate = converted(network, x, impl=impl, include=PARTS.get(name))
    folder = save_network(
        made, tmp_path / "made", source=source, options=options, certificate=certificate
    )
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "certificate.json",
        "config.json",
        "model.safetensors",
    ]
    assert NetworkCertificate.load(folder / "certificate.json") == certificate
    random = torch.get_rng_state()
    loaded = load_network(folder)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same_network(loaded, made)
    with torch.no_grad():
        assert torch.equal(loaded(x), made(x))


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_convolutions_made_of_attention_come_back(name, tmp_path):
    torch.manual_seed(0)
    x = images(3, 8, 8)
    made, certificate = network_to_conv(OWN_ATTENTION[name]().eval(), images=x)
    loaded = load_network(save_network(made, tmp_path / "made", certificate=certificate))
    assert_same_network(loaded, made)
    assert torch.equal(loaded(x), made(x))
    assert isinstance(loaded.blocks[0].mixer, nn.Conv2d)


def test_a_network_of_the_users_own_comes_back_with_ties_views_and_buffers(tmp_path):
    torch.manual_seed(0)
    x, source = images(3, 9, 7), Tied()
    made, _ = converted(source, x)
    made.scale *= 1  # the same values in another tensor
    made.half()
    folder = save_network(made, tmp_path / "made")
    assert json.loads((folder / "config.json").read_text())["source"] is None
    before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    loaded = load_network(folder, model=source)
    assert_same_network(loaded, made)
    assert loaded.again is loaded.first
    assert loaded.scale.dtype == torch.float16
    assert all(torch.equal(tensor, before[name]) for name, tensor in source.state_dict().items())


def test_the_weights_are_those_of_a_plain_state_dict(tmp_path):
    x = images(3, 9, 7)
    made, _ = converted(Tied(), x)
    save_network(made, tmp_path / "made")
    other, _ = converted(Tied(), x)
    found = other.load_state_dict(load_file(tmp_path / "made" / "model.safetensors"), strict=False)
    assert found.unexpected_keys == []
    assert {name.partition(".")[0] for name in found.missing_keys} == {
        "again",
        "right",
    }  # tied, and written once
    torch.save(made.state_dict(), tmp_path / "plain.pt")
    third, _ = converted(Tied(), x)
    third.load_state_dict(torch.load(tmp_path / "plain.pt", weights_only=True))
    with torch.no_grad():
        assert torch.equal(other(x), made(x))
        assert torch.equal(third(x), made(x))


def test_a_network_in_channels_last_comes_back_in_it(tmp_path):
    network, x = ResNet(1, width=8).eval(), images().contiguous(memory_format=torch.channels_last)
    network.to(memory_format=torch.channels_last)
    made, _ = network_to_attention(network, exclude="stages.*", images=x)
    loaded = load_network(save_network(made, tmp_path / "made"))
    assert_same_network(loaded, made)
    assert loaded.stages[0].first.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(loaded(x), made(x))


def test_a_layer_is_a_network_too(tmp_path):
    network, _ = conv_to_attention(nn.Conv2d(3, 5, 3))
    loaded = load_network(save_network(network, tmp_path / "network"))
    assert_same_network(loaded, network.eval())


class Odd(nn.Module):
    """A layer that nothing describes."""


def broken(change):
    """Makes a converted network and changes it."""

    def make():
        made, _ = network_to_attention(ResNet(1, width=8).eval(), include="stem.*", images=images())
        change(made)
        return made

    return make


UNSAVABLE = {
    "foreign layer": (
        broken(lambda n: setattr(n, "head", Odd())),
        "head is a .*Odd, not a torch.*Linear",
    ),
    "added module": (
        broken(lambda n: setattr(n, "more", Odd())),
        r"more \(a .*Odd\) is added",
    ),
    "removed module": (
        broken(lambda n: setattr(n, "head", None)),
        r"head \(a torch.*Linear\) is missing",
    ),
    "another size": (
        broken(lambda n: setattr(n, "head", nn.Linear(64, 7))),
        r"head.weight is of shape \(7, 64\), not",
    ),
    "switch": (
        broken(lambda n: setattr(n.stages[0].first_norm, "eps", 0.1)),
        r"first_norm\.eps is 0\.1, not 1e-05",
    ),
    "method": (
        broken(lambda n: setattr(n.head, "forward", torch.relu)),
        r"head\.forward \(\S*\.relu\) is added",
    ),
    "hook": (
        broken(lambda n: n.head.register_forward_hook(lambda *_: None)),
        r"head\.forward hook \(.*<lambda>\) is added",
    ),
    "parameter": (
        broken(lambda n: n.register_parameter("p", nn.Parameter(torch.ones(1)))),
        r"p \(of shape \(1,\)\) is added",
    ),
    "buffer": (
        broken(lambda n: n.register_buffer("b", torch.ones(1), persistent=False)),
        r"b \(float32 of shape \(1,\) \[1\.0\]\) is added",
    ),
    "meta": (
        broken(lambda n: n.to("meta")),
        "its stem.0.values.weight is on the meta device and has no values",
    ),
    "sparse": (
        broken(
            lambda n: setattr(n.head, "weight", nn.Parameter(n.head.weight.detach().to_sparse()))
        ),
        "its head.weight is sparse or quantised",
    ),
}


@pytest.mark.parametrize(("make", "message"), UNSAVABLE.values(), ids=UNSAVABLE)
def test_what_would_not_come_back_is_not_saved(make, message, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match=rf"cannot save this ResNet as convattn:ResNet: .*({message})"
    ):
        save_network(make(), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_the_source_must_be_given(tmp_path):
    network = timm.create_model("resnet10t", num_classes=3, output_stride=8).eval()
    message = (
        r"cannot save this ResNet as timm:resnet10t: .*layer3\.0\.stride is 1, not 2; .*"
        r"AvgPool2dSame, not a .*AvgPool2d; and more\. Give the options"
    )
    with pytest.raises(UnsupportedModelError, match=message):
        save_network(
            network, tmp_path / "made", source="timm:resnet10t", options={"num_classes": 3}
        )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    made, _ = network_to_attention(ResNet(1, width=8).eval(), include="stem.*", images=images())
    return save_network(made, tmp_path_factory.mktemp("kept") / "made")


@pytest.fixture
def saved(kept, tmp_path):
    return Path(shutil.copytree(kept, tmp_path / "made"))


def write_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_layer(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["layers"][0] |= changes
    write_config(folder, layers=config["layers"])


def cut_off(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])


SEVEN = {"blocks_per_stage": 1, "width": 8, "num_classes": 7}
DAMAGES = {
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "holds no saved network: config.json is not readable",
    ),
    "config no JSON": (
        lambda f: (f / "config.json").write_text("{"),
        "config.json is not readable",
    ),
    "deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "is not readable"),
    "list": (
        lambda f: (f / "config.json").write_text("[]"),
        "does not describe a network of convattn",
    ),
    "value": (
        lambda f: write_config(f, options={"width": 0}),
        "cannot be built: width must be an integer of at least 1, but is 0",
    ),
    "another kind": (
        lambda f: write_config(f, kind="Linear"),
        "does not describe a network of convattn",
    ),
    "another version": (
        lambda f: write_config(f, schema_version=1),
        "must be of schema version 2, but is of 1",
    ),
    "fields": (
        lambda f: write_config(f, layers=None, tied=[]),
        "config.json is damaged: layers, tied",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "cannot read the weights"),
    "weights cut off": (cut_off, "cannot read the weights"),
    "source": (
        lambda f: write_config(f, source="convattn:ResNot"),
        "that cannot be built: unknown network",
    ),
    "options": (
        lambda f: write_config(f, options={"widht": 8}),
        "that cannot be built: options must fit",
    ),
    "sizes": (
        lambda f: write_config(f, options=SEVEN),
        "do not fit together: .* of another shape: ",
    ),
    "place": (
        lambda f: change_layer(f, names=["stem.9"]),
        "do not fit together: .* missing: stem.0.weight; 1 unexpected",
    ),
    "kind of layer": (
        lambda f: change_layer(f, kind="Linear"),
        "do not fit together: unknown kind of layer 'Linear'",
    ),
    "layer's options": (lambda f: change_layer(f, options={}), "do not fit together: "),
    "layers": (
        lambda f: write_config(f, layers=[]),
        "do not fit together: .* missing: stem.0.weight",
    ),
    "ties": (
        lambda f: write_config(f, tied={"a": "b"}),
        "do not fit together: a is tied to b, which is not there",
    ),
    "strides": (
        lambda f: write_config(f, strides={"head.weight": [9, 9]}),
        "cannot have the strides",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_and_missing_files_are_refused(damage, message, saved, without_type_checks):
    damage(saved)
    with pytest.raises(CheckpointError, match=message):
        load_network(saved, verify=False)
    with pytest.raises(
        CheckpointError, match=r"not what was saved|cannot read|not readable|does not describe"
    ):
        load_network(saved)


def test_options_that_would_read_files_are_refused(saved):
    write_config(saved, source="timm:resnet10t", options={"checkpoint_path": "elsewhere"})
    with pytest.raises(
        CheckpointError,
        match="options must be those of the architecture, but checkpoint_path would",
    ):
        load_network(saved, verify=False)
    write_config(saved, source="torchvision:resnet18", options={"weights": "DEFAULT"})
    with pytest.raises(
        CheckpointError, match="options must be those of the architecture, but weights would bring"
    ):
        load_network(saved, verify=False)


def test_a_model_must_be_given_where_it_is_needed_and_fit(tmp_path, saved, without_type_checks):
    made, _ = converted(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), images())
    folder = save_network(made, tmp_path / "own")
    with pytest.raises(
        ArgumentError,
        match=r"model must be given, because .*own does not say what builds its torch.nn.*Sequential, so that it is"
        r" loaded only from Python: load_network\(.*own', model=Sequential\(\.\.\.\)\)",
    ):
        load_network(folder)
    with pytest.raises(
        CheckpointError,
        match=r"with the model given: 0 \(a convattn.*\) is missing; 1 \(\S* \S*\) is missing\. Build model as",
    ):
        load_network(folder, model=nn.Sequential())
    with pytest.raises(
        CheckpointError,
        match=r"with the model given: 2 \(a torch\S*Linear\) is added\. Build model",
    ):
        load_network(folder, model=nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Linear(2, 3)))
    with pytest.raises(
        ArgumentError, match="model must be a network, an instance of its class, but is of type int"
    ):
        load_network(folder, model=3)
    assert isinstance(load_network(saved, model=ResNet(1, width=8)).stem[0], RelativeAttention2d)


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr("convattn.networks.saving.network_card", fail)
    with pytest.raises(OSError, match="disk full"):
        save_network(ResNet(1, width=8), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_dtypes_that_the_format_lacks_are_refused(tmp_path):
    network = nn.Module()
    network.register_parameter("turn", nn.Parameter(torch.ones(3, dtype=torch.complex128)))
    with pytest.raises(UnsupportedModelError, match=r"cannot save this Module: .*complex128"):
        save_network(network, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []
