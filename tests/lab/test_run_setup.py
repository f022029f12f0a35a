import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.lab.tiny import tiny_data, tiny_recipe, tiny_speed_recipe

from convattn.data import load_digits, normalise
from convattn.encodings import ENCODINGS
from convattn.errors import DataError, RecipeError
from convattn.lab.recipe import (
    CosineRecipe,
    DataRecipe,
    OptimRecipe,
    StartRecipe,
    StepsRecipe,
    TriangleRecipe,
)
from convattn.lab.run_setup import build_network, build_optimizer, learning_rate_factor, load_data
from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet
from convattn.networks import save_network


def test_network_to_start_from_gives_its_weights_and_the_recipe_all_else(tmp_path):
    trained = build_network(tiny_recipe(dropout=0.1), tiny_data())
    save_network(trained, tmp_path / "start")
    start = StartRecipe("tiny", folder=str(tmp_path / "start"))
    made = build_network(dataclasses.replace(tiny_recipe(dropout=0.5), start=start), tiny_data())
    assert made.arguments["dropout"] == 0.5
    assert {module.p for module in made.modules() if isinstance(module, torch.nn.Dropout)} == {0.5}
    assert all(
        torch.equal(value, trained.state_dict()[name]) for name, value in made.state_dict().items()
    )


def with_optim(**options):
    return dataclasses.replace(tiny_recipe(), optim=OptimRecipe(**options))


@pytest.mark.parametrize("name", sorted(set(ENCODINGS) - {"shift"}))
def test_centres_and_widths_have_no_weight_decay_and_all_else_has(name):
    network = AttentionNet(name, width=8, depth=2, heads=3, ffn=8)
    kept = set()
    recipe = with_optim(weight_decay=0.5)
    for group in build_optimizer(recipe, network).param_groups:
        if group["weight_decay"] == 0:
            kept.update(map(id, group["params"]))
    mixers = [block.mixer for block in network.blocks]
    places = (
        {"centres", ENCODINGS[name].width_parameter}
        if mixers[0].encoding.head_shapes is not None
        else set()
    )
    for mixer in mixers:
        own = dict(mixer.encoding.named_parameters())
        assert {key for key, number in own.items() if id(number) in kept} == places
    assert len(kept) == len(mixers) * len(places)


def test_rates_of_their_own_go_by_name():
    recipe = tiny_speed_recipe()
    network = build_network(recipe, tiny_data())
    optimizer = build_optimizer(recipe, network)
    own = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    kinds = {
        "encoding.centres": (0.5, 0.0),
        "encoding.root_sharpness": (0.25, 0.0),
        "norm.bias": (8.0, 1e-3 / 8),
    }
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight") or name == "stem.values.weight":
            assert id(parameter) not in own
            continue
        found = own[id(parameter)]
        expected = next(
            (values for kind, values in kinds.items() if name.endswith(kind)), (1.0, 1e-3)
        )
        assert (found["rate"], found["weight_decay"]) == expected
        assert found["epochs"] == (1 if name == "stem.bias" else None)


def test_epochs_of_a_stem_need_a_stem():
    recipe = tiny_recipe()
    network = build_network(recipe, tiny_data())
    training = dataclasses.replace(recipe.training, stem_epochs=3)
    message = r"training\.stem_epochs must be left out where the network is no SpeedNet, but is 3"
    with pytest.raises(RecipeError, match=message):
        build_optimizer(dataclasses.replace(recipe, training=training), network)


def test_stem_whitens_the_training_images():
    data = tiny_data()
    network = SpeedNet(widths=[2], in_channels=1)
    network.whiten(normalise(data.train.images, data.mean, data.std))
    assert torch.equal(build_network(tiny_speed_recipe(), data).stem.weight, network.stem.weight)


def test_sgd_and_adamw_take_their_options():
    network = build_network(tiny_recipe(), tiny_data())
    shared = {"learning_rate": 0.3, "momentum": 0.8}
    sgd = build_optimizer(with_optim(**shared, nesterov=True), network)
    assert isinstance(sgd, torch.optim.SGD)
    assert [sgd.defaults[key] for key in ("lr", "momentum", "nesterov")] == [0.3, 0.8, True]
    adamw = build_optimizer(with_optim(algorithm="adamw", **shared), network)
    assert isinstance(adamw, torch.optim.AdamW)
    assert [adamw.defaults[key] for key in ("lr", "betas")] == [0.3, (0.8, 0.999)]


def test_images_are_those_that_the_recipe_names(tmp_path):
    assert load_data(DataRecipe("digits")).record == load_digits().record
    held = load_digits().held_out(400)
    for data in (None, load_digits()):
        assert load_data(DataRecipe("digits", held_out=400), data).record == held.record
    with pytest.raises(DataError, match=r"CIFAR-10: there is no folder"):
        load_data(DataRecipe("cifar10", folder=str(tmp_path / "absent")))


def factor(recipe, step, total):
    return learning_rate_factor(recipe, step, epochs=total, steps_per_epoch=1)


def test_cosine_follows_its_formula():
    for step in range(101):
        expected = step / 7 if step < 7 else 0.5 + 0.5 * math.cos(math.pi * (step - 7) / 93)
        actual = factor(CosineRecipe(warmup=0.075), step, 100)
        assert actual == pytest.approx(expected, rel=1e-15, abs=1e-15), f"step {step}"


def test_cosine_without_warmup_starts_at_one():
    assert factor(CosineRecipe(warmup=0.0), 0, 10) == 1


def test_milestones_count_epochs():
    recipe = StepsRecipe(milestones=(80, 150, 250))
    at = {
        epoch: learning_rate_factor(recipe, epoch * 500, epochs=300, steps_per_epoch=500)
        for epoch in (79, 80, 299)
    }
    assert at == pytest.approx({79: 1, 80: 0.1, 299: 1e-3})


def test_warmup_is_a_share_of_all_steps():
    recipe = CosineRecipe(warmup=0.05)
    assert learning_rate_factor(recipe, 7500, epochs=300, steps_per_epoch=500) == 1
    assert learning_rate_factor(recipe, 3750, epochs=300, steps_per_epoch=500) == 0.5


def test_triangle_lies_on_two_straight_lines():
    for step in range(101):
        expected = np.interp(step, [0, 23, 100], [0.2, 1, 0.07])
        actual = factor(TriangleRecipe(start=0.2, peak=0.23, end=0.07), step, 100)
        assert actual == pytest.approx(expected, rel=1e-14), f"step {step}"


def test_triangle_without_a_rise_starts_at_one():
    assert factor(TriangleRecipe(start=0.2, peak=0.0, end=0.5), 0, 7) == 1


def test_triangle_of_a_recipe_counts_all_steps():
    recipe = TriangleRecipe(start=0.2, peak=0.25, end=0.1)
    factors = [
        learning_rate_factor(recipe, step, epochs=4, steps_per_epoch=10) for step in (0, 10, 40)
    ]
    assert factors == pytest.approx([0.2, 1, 0.1], rel=1e-15)
