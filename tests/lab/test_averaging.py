from functools import partial

import pytest
import torch
from torch import nn

from convattn.budget import assert_within_budget, references
from convattn.lab.recipe import LookaheadRecipe
from convattn.lab.trainer import make_average, update_average

TOTAL = 11


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def move(network, step):
    """Stands for a step of training: changes weights and running statistics."""
    generator = torch.Generator().manual_seed(step)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.rand(value.shape, generator=generator, dtype=torch.float32))
        else:
            value.add_(1)


def followed(recipe, network):
    """Weights and their average after every step, by the formula."""
    averages, shown = None, []
    for step in range(1, TOTAL + 1):
        move(network, step)
        if step % recipe.steps == 0 or step == TOTAL:
            decay = recipe.decay**recipe.steps * (step / TOTAL) ** 3
            now = {name: value.clone() for name, value in network.state_dict().items()}
            mixed = (
                now
                if averages is None
                else {
                    name: decay * averages[name] + (1 - decay) * value
                    if value.is_floating_point()
                    else value
                    for name, value in now.items()
                }
            )
            averages = mixed
            network.load_state_dict(averages)
        shown.append(torch.cat([value.flatten() for value in network.state_dict().values()]))
    return shown


@pytest.mark.parametrize("steps", [1, 3, 5, 20])
def test_lookahead_follows_its_formula(steps):
    look = LookaheadRecipe(steps=steps, decay=0.9)
    network = small_network()
    average = make_average(network, look, TOTAL)
    hi, lows = references(partial(followed, look), small_network())
    for step in range(1, TOTAL + 1):
        move(network, step)
        update_average(average, network, look, step, TOTAL)
        found = torch.cat([value.flatten() for value in network.state_dict().values()])
        assert_within_budget(found, hi[step - 1].double(), [low[step - 1] for low in lows])
        if step % steps == 0 or step == TOTAL:
            for own, averaged in zip(
                network.state_dict().values(), average.module.state_dict().values(), strict=True
            ):
                assert torch.equal(own, averaged)
    assert network[1].num_batches_tracked == TOTAL


def test_no_average_is_made_unasked():
    assert make_average(small_network(), None, TOTAL) is None
