import dataclasses

import pytest
import torch
from tests.training.tiny import tiny_data, tiny_recipe

from convattn.data import load_digits
from convattn.errors import DataError
from convattn.models import AttentionNet
from convattn.training.build import build_network, build_optimizer, load_data
from convattn.training.network_recipe import ConvNetRecipe, ResNetRecipe
from convattn.training.recipe import DataRecipe, OptimRecipe

MODELS = [tiny_recipe().model, ConvNetRecipe(width=8, depth=1, ffn=8), ResNetRecipe(blocks_per_stage=1, width=4)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_network_fits_the_images(model):
    data = tiny_data()
    network = build_network(dataclasses.replace(tiny_recipe(), model=model), data).eval()
    assert network(torch.zeros(3, *data.image_shape)).shape == (3, data.num_classes)


def test_shapes_of_generalised_heads_are_kept_from_weight_decay():
    network = AttentionNet("generalized_quadratic", width=8, depth=2, heads=3, ffn=8)
    optimizer = build_optimizer(OptimRecipe(weight_decay=0.5), network)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    kept = {name for name, p in network.named_parameters() if decay[id(p)] == 0}
    assert kept == {f"blocks.{block}.mixer.encoding.{name}" for block in (0, 1) for name in ("centres", "shape")}


def test_other_encodings_are_decayed():
    network = AttentionNet("learned_axial", width=8, depth=1, heads=3, ffn=8)
    (group,) = build_optimizer(OptimRecipe(weight_decay=0.5), network).param_groups
    assert group["weight_decay"] == 0.5


def test_sgd_and_adamw_take_their_options():
    network = build_network(tiny_recipe(), tiny_data())
    sgd = build_optimizer(OptimRecipe("sgd", learning_rate=0.3, momentum=0.8, nesterov=True), network)
    assert isinstance(sgd, torch.optim.SGD)
    assert [sgd.defaults[key] for key in ("lr", "momentum", "nesterov")] == [0.3, 0.8, True]
    adamw = build_optimizer(OptimRecipe("adamw", learning_rate=0.3, momentum=0.8), network)
    assert isinstance(adamw, torch.optim.AdamW)
    assert [adamw.defaults[key] for key in ("lr", "betas")] == [0.3, (0.8, 0.999)]


def test_images_are_those_that_the_recipe_names(tmp_path):
    assert load_data(DataRecipe("digits")).record == load_digits().record
    with pytest.raises(DataError, match=r"CIFAR-10: there is no folder"):
        load_data(DataRecipe("cifar10", folder=str(tmp_path / "absent")))
