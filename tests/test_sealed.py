"""Saved folders hold digests of all that the result depends on, and loading says what differs."""

import json
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from convattn import load_network, save_network
from convattn.convert import conv_to_attention
from convattn.errors import (
    ArgumentError,
    CertificateWarning,
    CheckpointError,
    UnsupportedModelError,
    WriteError,
)
from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.models import ConvNet
from convattn.sealed import read_sealed, write_sealed

TENSORS = {
    "numbers": torch.arange(6.0).reshape(2, 3),
    "narrow": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "none": torch.empty(0, 3),
    "one": torch.tensor(7),
    "turned": torch.arange(6.0).reshape(3, 2).T,
    "eight bits": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "complex": torch.tensor([1 + 2j], dtype=torch.complex64),
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    write_sealed(made, {"kind": "network", "size": 3, "name": "é", "list": (1, 2)}, TENSORS)
    return made


def edit(folder, change):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def numbers(tensor):
    """The tensor; of eight bits, which torch does not compare, the bits."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def test_what_is_written_is_read(folder):
    config, tensors = read_sealed(folder)
    assert config == {"kind": "network", "size": 3, "name": "é", "list": [1, 2]}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype, name
        assert torch.equal(*(numbers(each) for each in (tensors[name], tensor))), name
    os.umask(umask := os.umask(0o022))
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o666 & ~umask}
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_what_changes_nothing_is_taken(folder):
    text = (folder / "config.json").read_text()
    turned = dict(reversed(json.loads(text).items()))
    (folder / "config.json").write_text(
        json.dumps(turned, indent=7, ensure_ascii=False), encoding="utf-8"
    )
    (folder / "README.md").write_text("license: mine")
    assert read_sealed(folder)[0]["size"] == 3


def replace_weights(folder, **changes):
    from safetensors.torch import save_file

    tensors = {**read_sealed(folder)[1], **changes}
    save_file(
        {name: tensor for name, tensor in tensors.items() if tensor is not None},
        folder / "model.safetensors",
    )


CHANGES = {
    "value": (
        lambda f: edit(f, lambda c: c.update(size=4)),
        "config.json is not what was saved; if it was edited on pu",
    ),
    "type": (lambda f: edit(f, lambda c: c.update(size=3.0)), "config.json is not what was saved"),
    "added": (
        lambda f: edit(f, lambda c: c.update(more=None)),
        "config.json is not what was saved",
    ),
    "digest": (
        lambda f: edit(f, lambda c: c["digests"].pop("model.safetensors")),
        "config.json is not what was saved",
    ),
    "odd digests": (
        lambda f: edit(f, lambda c: c.update(digests=3)),
        "config.json has no digests, so changes cannot be found",
    ),
    "no digests": (
        lambda f: edit(f, lambda c: c.pop("digests")),
        r"config.json has no digests.*verify=False",
    ),
    "number": (
        lambda f: replace_weights(f, one=torch.tensor(8)),
        "model.safetensors is not what was saved; if",
    ),
    "name": (
        lambda f: replace_weights(f, one=None, won=torch.tensor(7)),
        "model.safetensors is not what was saved; if",
    ),
    "certificate": (
        lambda f: (f / "certificate.json").write_text("{}"),
        "certificate.json is not what was saved",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_refused_by_name(folder, change, message):
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        read_sealed(folder)


def test_what_was_edited_on_purpose_is_loaded_when_asked(folder):
    replace_weights(folder, one=torch.tensor(8))
    edit(folder, lambda config: config.pop("digests"))
    config, tensors = read_sealed(folder, verify=False)
    assert config["size"] == 3
    assert tensors["one"] == 8


def test_nan_is_refused_on_saving_and_on_loading_and_infinity_is_not(tmp_path):
    conv = nn.Conv1d(2, 3, 5)
    with torch.no_grad():
        conv.bias[1] = torch.inf
    folder = save_network(conv, tmp_path / "infinite")
    assert load_network(folder).bias[1] == torch.inf
    with torch.no_grad():
        conv.bias[0] = torch.nan
    with pytest.raises(UnsupportedModelError, match=r"cannot save this Conv1d: bias holds NaN"):
        save_network(conv, tmp_path / "made")
    own = ConvNet(width=8, depth=1, ffn=8)
    with torch.no_grad():
        own.head.weight.fill_(torch.nan)
        own.head.bias.fill_(torch.nan)
    with pytest.raises(
        UnsupportedModelError, match=r"ConvNet as convattn:ConvNet: head.weight, head.bias hold NaN"
    ):
        save_network(own, tmp_path / "own")
    assert [file.name for file in tmp_path.iterdir()] == ["infinite"]
    replace_weights(folder, bias=conv.bias.detach())
    with pytest.raises(CheckpointError, match=r"model.safetensors is not what was saved"):
        load_network(folder)
    assert load_network(folder, verify=False).bias[0].isnan()


@pytest.mark.parametrize("verdict", ["exact", "different", "failed"])
def test_a_conversion_that_failed_is_said(verdict, tmp_path, recwarn):
    layer, certificate = conv_to_attention(nn.Conv1d(2, 3, 5))
    certificate = replace(certificate, verdict=verdict)
    folder = save_network(layer, tmp_path / "layer", certificate=certificate)
    if verdict == "failed":
        with pytest.warns(CertificateWarning, match="in .*layer says that the conversion failed"):
            load_network(folder)
    else:
        load_network(folder)
    assert not recwarn.list


def test_a_certificate_is_covered(tmp_path):
    layer, certificate = conv_to_attention(nn.Conv1d(2, 3, 5))
    folder = save_network(
        layer, tmp_path / "layer", certificate=replace(certificate, verdict="failed")
    )
    text = (folder / "certificate.json").read_text()
    (folder / "certificate.json").write_text(text.replace('"failed"', '"exact"'))
    with pytest.raises(CheckpointError, match=r"certificate.json is not what was saved"):
        load_network(folder)
    (folder / "certificate.json").unlink()
    with pytest.raises(CheckpointError, match=r"certificate.json is missing"):
        load_network(folder)
    (folder / "certificate.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"certificate.json is not a certificate \(TypeError"):
        load_network(folder, verify=False)


def test_a_disk_that_is_full_while_weights_are_written(folder, monkeypatch):
    from safetensors import SafetensorError

    def fail(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr("convattn.sealed.save_file", fail)
    with pytest.raises(WriteError, match=r"cannot write .*model.safetensors: .*No space left"):
        write_sealed(folder, {}, {"a": torch.ones(2)})
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("value", [None, 3, b"made", ["made"], "a\0b"], ids=repr)
def test_what_is_no_path_is_named(value, without_type_checks):
    with pytest.raises(ArgumentError, match=r"source must be a path, but is"):
        load_network(value)


NARROW = {
    "half": torch.tensor([1.5, -0.0, 6e-8, float("inf")], dtype=torch.float16),
    "count": torch.tensor(7),
}


def narrow(tmp_path, load_as, **tensors):
    made = tmp_path / "narrow"
    made.mkdir()
    write_sealed(made, {"kind": "network", "size": 3, "load_as": load_as}, {**NARROW, **tensors})
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_narrow_file_is_widened_bit_for_bit(tmp_path, dtype):
    config, tensors = read_sealed(narrow(tmp_path, str(dtype).removeprefix("torch.")))
    assert config == {"kind": "network", "size": 3}
    assert (tensors["half"].dtype, tensors["count"].dtype) == (dtype, torch.int64)
    assert torch.equal(tensors["half"], NARROW["half"].to(dtype))
    assert torch.equal(
        tensors["half"].to(torch.float16).view(torch.int16), NARROW["half"].view(torch.int16)
    )


def test_without_the_word_a_narrow_file_stays_narrow(tmp_path):
    folder = narrow(tmp_path, "float32")
    edit(folder, lambda config: config.pop("load_as"))
    with pytest.raises(CheckpointError, match=r"config\.json is not what was saved"):
        read_sealed(folder)
    assert read_sealed(folder, verify=False)[1]["half"].dtype == torch.float16


@pytest.mark.parametrize("name", ["int32", "float33", "nn", "", None, 3])
def test_what_is_no_dtype_to_load_as_is_refused(tmp_path, name):
    with pytest.raises(
        CheckpointError,
        match=r"config\.json: load_as must be a dtype that holds every value of half, but is ",
    ):
        read_sealed(narrow(tmp_path, name))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_loading_never_rounds(tmp_path, name):
    wide = torch.tensor([0.1], dtype=torch.float64)
    with pytest.raises(CheckpointError, match=f"holds every value of wide, but is '{name}'"):
        read_sealed(narrow(tmp_path, name, wide=wide))


def test_tensors_that_share_memory_or_are_part_of_one_are_written_whole(tmp_path):
    whole = torch.arange(35.0).reshape(5, 7)
    tensors = {
        "whole": whole,
        "again": whole.view(7, 5),
        "rows": whole[1:3],
        "columns": whole[:, 2:5],
    }
    (tmp_path / "made").mkdir()
    write_sealed(tmp_path / "made", {"kind": "network"}, tensors)
    _, found = read_sealed(tmp_path / "made")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert (tmp_path / "made" / "model.safetensors").stat().st_size < 2 * 4 * (
        35 + 35 + 14 + 15
    ) + 1000


def resealed(place, saved, change):
    """Writes a folder anew with another configuration, and digests that fit."""
    config, tensors = read_sealed(saved)
    change(config)
    place.mkdir()
    write_sealed(place, config, tensors)
    return place


HUGE = {
    "depth": (
        lambda: ConvNet(width=8, depth=2, ffn=8),
        "options.depth",
        "depth must be at most 28 with these tensors, but",
    ),
    "width": (
        lambda: ConvNet(width=8, depth=2, ffn=8),
        "options.width",
        "width must be at most 16384 with these tensors, but",
    ),
    "heads": (
        lambda: RelativeAttention1d(3, 4, num_heads=2, encoding="sinusoidal"),
        "options.num_heads",
        "do not fit together",
    ),
    "window": (
        lambda: conv_to_attention(nn.Conv1d(3, 4, 5))[0],
        "options.kernel_size",
        "do not fit together",
    ),
    "extent": (
        lambda: RelativeAttention1d(3, 4, num_heads=2, encoding="learned_axial", content=True),
        "encoding.options.extent",
        "do not fit together",
    ),
    "channels": (lambda: nn.Conv1d(3, 4, 5), "options.in_channels", "do not fit together"),
}


@pytest.mark.parametrize("size", [10**6, 2**70])
@pytest.mark.parametrize(("make", "key", "message"), HUGE.values(), ids=HUGE)
def test_sizes_that_do_not_fit_the_tensors_are_refused_before_anything_is_built(
    tmp_path, monkeypatch, make, key, message, size
):
    made = make()
    saved = tmp_path / "saved"
    save_network(made, saved)

    def change(config):
        if not isinstance(made, ConvNet):
            (config,) = config["layers"]
        *outer, last = key.split(".")
        for name in outer:
            config = config[name]
        config[last] = [size] if isinstance(config[last], list) else size

    place = resealed(tmp_path / "resealed", saved, change)
    monkeypatch.setattr(torch.Tensor, "uniform_", refuse_large(torch.Tensor.uniform_))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_network(place)
    assert "Exception raised from" not in str(caught.value)


def refuse_large(draw):
    """Fails where numbers are drawn that the saved tensors could not hold: memory was taken for them."""

    def small(tensor, *arguments, **options):
        assert tensor.is_meta or tensor.numel() < 10**5
        return draw(tensor, *arguments, **options)

    return small


def test_the_window_of_a_layer_is_not_listed_where_heads_are_not_its_taps():
    """A window of 10⁶ × 10⁶ pixels would take more than all memory."""
    assert RelativeAttention2d(
        3, 4, num_heads=2, encoding="quadratic", kernel_size=10**6
    ).kernel_size == (
        10**6,
        10**6,
    )
