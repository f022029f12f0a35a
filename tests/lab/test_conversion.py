"""Recipes that make attention of a trained network's convolutions, and train on."""

import dataclasses

import pytest
import torch
from tests.lab.resuming import cut_off, resume, timeless
from tests.lab.tiny import tiny_data, tiny_recipe

from convattn import network_to_attention, network_to_conv
from convattn.errors import ArgumentError, CheckpointError, ConversionError, RecipeError
from convattn.lab import load_recipe, run_setup, train
from convattn.lab.recipe import ConvertRecipe, Recipe, ResNetRecipe, StartRecipe
from convattn.lab.run_setup import build_network
from convattn.layers import RelativeAttention
from convattn.networks import load_network
from convattn.provenance import RunRecord

SMALL = ResNetRecipe(blocks_per_stage=1, width=4)
LAST = ("stages.3.first", "stages.3.second")


def recipe(convert: ConvertRecipe | None, folder: object = None, **changes: int) -> Recipe:
    start = StartRecipe() if folder is None else StartRecipe("tiny", folder=str(folder))
    return dataclasses.replace(tiny_recipe(**changes), model=SMALL, start=start, convert=convert)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run whose network the others start from."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train(recipe(None), output=folder, data=tiny_data(), progress=False)
    return folder


def attention(network):
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, RelativeAttention)
    }


@pytest.mark.parametrize("content", [False, True])
def test_training_goes_on_from_the_function_that_was_trained(trained, content):
    convert = ConvertRecipe(include=LAST, content=content)
    network = build_network(recipe(convert, trained), tiny_data())
    layers = attention(network)
    assert tuple(layers) == LAST
    assert {layer.gate_kind for layer in layers.values()} == {"tanh" if content else None}
    before, _ = network_to_conv(network.eval())
    expected = load_network(trained).state_dict()
    found = before.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_centres_sharpness_and_gates_learn_and_the_network_comes_back(trained, tmp_path):
    convert = ConvertRecipe(include=LAST, sharpness=5.0, content=True)
    record = train(
        recipe(convert, trained), output=tmp_path / "run", data=tiny_data(), progress=False
    )
    network = load_network(tmp_path / "run")
    start = build_network(recipe(convert, trained), tiny_data())
    for name, layer in attention(network).items():
        old = start.get_submodule(name)
        assert not torch.equal(layer.encoding.centres, old.encoding.centres)
        assert not torch.equal(layer.encoding.root_sharpness, old.encoding.root_sharpness)
        assert layer.gate.all()
    assert record.recipe["convert"] == {"include": list(LAST), "sharpness": 5.0, "content": True}
    data = tiny_data()
    with torch.no_grad():
        scores = network((data.test.images / 255 - data.mean[0]) / data.std[0])
    assert (scores.argmax(1) == data.test.labels).double().mean().item() == record.results[
        "test_accuracy"
    ]


def test_heads_of_converted_layers_are_followed(trained, tmp_path):
    from pyarrow import parquet

    convert = ConvertRecipe(include=LAST, sharpness=5.0)
    train(
        recipe(convert, trained, epochs=1),
        output=tmp_path / "run",
        data=tiny_data(),
        progress=False,
    )
    rows = parquet.read_table(tmp_path / "run" / "heads.parquet").to_pylist()
    first = [row for row in rows if row["step"] == 0]
    assert [(row["layer"], row["head"]) for row in first] == [
        (layer, head) for layer in range(2) for head in range(9)
    ]
    assert [row["sharpness"] for row in first] == pytest.approx([5.0] * 18)
    assert [(row["centre_row"], row["centre_col"]) for row in first[:9]] == [
        (row, col) for row in (-1.0, 0.0, 1.0) for col in (-1.0, 0.0, 1.0)
    ]


def test_a_run_that_was_stopped_ends_with_the_same_bits(trained, tmp_path, monkeypatch):
    convert = ConvertRecipe(include=LAST, sharpness=5.0, content=True)
    short = recipe(convert, trained, epochs=1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(short, output=whole, data=tiny_data(), progress=False)
    cut_off(monkeypatch, cut, step=3, recipe=short, checkpoint_every=2)
    assert resume(cut, short).resumed == 1
    assert timeless(cut) == timeless(whole)
    assert (cut / "config.json").read_bytes() == (whole / "config.json").read_bytes()


def test_conversions_that_cannot_be_are_refused_before_the_first_step(trained):
    with pytest.raises(
        ArgumentError,
        match=r"include must be a pattern that matches convolutions .*, but is 'stage\.3'",
    ):
        build_network(recipe(ConvertRecipe(include=("stage.3",)), trained), tiny_data())
    attention_net = dataclasses.replace(tiny_recipe(), convert=ConvertRecipe())
    with pytest.raises(
        ConversionError, match=r"no convolution to convert in AttentionNet: .* attention already"
    ):
        build_network(attention_net, tiny_data())


def test_a_conversion_whose_certificate_fails_is_refused(monkeypatch):
    def disturbed(*given, **options):
        made, certificate = network_to_attention(*given, **options)
        return made, dataclasses.replace(certificate, verdict="failed")

    monkeypatch.setattr(run_setup, "network_to_attention", disturbed)
    with pytest.raises(
        ConversionError,
        match="the conversion that the recipe asks for failed its check:\nnetwork to atten",
    ):
        build_network(recipe(ConvertRecipe(include=LAST)), tiny_data())


SHORT = {"training.epochs": "1", "training.batch_size": "240"}
PAIR = ("resnet18-to-attention", "resnet18-longer")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of a network's run, and of the two that go on from it, with attention and without."""
    folder = tmp_path_factory.mktemp("pair")
    start = {**SHORT, "start.folder": str(folder / "resnet18")}
    for name, changes in (("resnet18", SHORT), (PAIR[0], start), (PAIR[1], start)):
        run = load_recipe(name, scale="tiny", overrides=changes)
        train(run, output=folder / name, progress=False)
    return folder


def test_recipe_and_its_control_run_at_scale_tiny_and_differ_in_the_conversion_alone(pair):
    records = [RunRecord.load(pair / name / "record.json") for name in PAIR]
    converted, control = ({**record.recipe, "name": "", "claim": ""} for record in records)
    assert converted.pop("convert") == {
        "include": ["stages.3.*"],
        "sharpness": 5.0,
        "content": True,
    }
    assert converted == control
    assert len(attention(load_network(pair / "resnet18-to-attention"))) == 3
    for scale in ("paper", "small"):
        first, second = (load_recipe(name, scale=scale) for name in PAIR)
        assert (
            dataclasses.replace(first, name=second.name, claim=second.claim, convert=None) == second
        )


def test_a_run_of_another_recipe_is_no_start(pair, tmp_path):
    """Its network may fit; the record would then name a recipe that did not make it."""
    again = {**SHORT, "start.folder": str(pair / "resnet18-longer")}
    more = load_recipe("resnet18-longer", scale="tiny", overrides=again)
    with pytest.raises(
        RecipeError, match=r"of resnet18 at scale tiny, but .* is one of resnet18-longer"
    ):
        train(more, output=tmp_path / "more", progress=False)


def test_a_start_that_has_learned_the_held_out_images_is_refused(pair):
    """Their accuracy would be that of training."""
    changes = {**SHORT, "start.folder": str(pair / "resnet18"), "data.held_out": "100"}
    more = load_recipe("resnet18-longer", scale="tiny", overrides=changes)
    with pytest.raises(
        RecipeError, match=r"has learned the images .* train it with data\.held_out=100"
    ):
        train(more, progress=False)


def test_a_start_of_another_scale_is_refused(pair):
    changes = {"start.folder": str(pair / "resnet18"), "data.name": "digits"}
    more = load_recipe("resnet18-longer", scale="small", overrides=changes)
    with pytest.raises(
        RecipeError, match=r"at scale small, but .* is one of resnet18 at scale tiny"
    ):
        train(more, progress=False)


def test_a_run_to_start_from_that_is_no_such_network_is_refused(trained):
    larger = dataclasses.replace(
        recipe(ConvertRecipe(include=LAST), trained),
        model=ResNetRecipe(blocks_per_stage=1, width=8),
    )
    with pytest.raises(CheckpointError, match="does not fit the recipe's ResNet"):
        build_network(larger, tiny_data())
