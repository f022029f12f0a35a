import dataclasses
import sys
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from tests.lab.tiny import tiny_data, tiny_recipe, tiny_speed_recipe
from tests.testing.host_traffic import host_traffic
from torch import nn

from convattn import load_network, save_network
from convattn.budget import assert_within_budget, references
from convattn.data import normalise
from convattn.errors import CheckpointError, MissingDependencyError, UnknownNameError
from convattn.lab import train, trainer
from convattn.lab.augment import crop, mirror, views
from convattn.lab.recipe import DataRecipe, LookaheadRecipe, OptimRecipe, ResNetRecipe
from convattn.lab.trainer import Batches, Lookahead, Trainer
from convattn.models import AttentionNet


def with_training(recipe, **changes):
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, **changes))


def test_label_smoothing_raises_the_loss_of_what_is_learnt():
    plain = train(tiny_recipe(epochs=8), data=tiny_data(), progress=False)
    smooth = train(
        with_training(tiny_recipe(epochs=8), label_smoothing=0.5), data=tiny_data(), progress=False
    )
    assert smooth.results["train_loss"] > plain.results["train_loss"] + 0.1


def test_average_of_the_weights_is_what_is_tested_and_saved(tmp_path):
    recipe = dataclasses.replace(tiny_recipe(epochs=3), lookahead=LookaheadRecipe(4, 0.5))
    trainer = Trainer(recipe, tiny_data(), Accelerator(cpu=True))
    metrics = trainer.run_epoch()  # of five steps
    assert not torch.equal(trainer.result.head.weight, trainer.network.head.weight)
    assert (metrics["test_loss"], metrics["test_accuracy"]) == trainer.evaluate()
    record = train(recipe, output=tmp_path / "run", data=tiny_data(), progress=False)
    saved = load_network(tmp_path / "run")
    with torch.inference_mode():
        images = normalise(tiny_data().test.images, (0.4,), (0.3,))
        right = (saved(images).argmax(1) == tiny_data().test.labels).double().mean().item()
    assert right == record.results["test_accuracy"]


def test_network_starts_from_that_of_a_run_and_is_pruned(tmp_path):
    first = tiny_recipe(encoding="generalized_quadratic")
    train(first, output=tmp_path / "first", data=tiny_data(), progress=False)
    network = load_network(tmp_path / "first")
    with torch.no_grad():
        network.blocks[0].mixer.encoding.shape[1] = 0
    save_network(network, tmp_path / "flat")
    start = dataclasses.replace(
        first.start, recipe="tiny", folder=str(tmp_path / "flat"), prune=True
    )
    record = train(
        dataclasses.replace(first, start=start),
        output=tmp_path / "pruned",
        data=tiny_data(),
        progress=False,
    )
    pruned = load_network(tmp_path / "pruned")
    assert isinstance(pruned, AttentionNet)
    assert pruned.heads == (2,)
    assert record.parameters == sum(parameter.numel() for parameter in pruned.parameters())


def test_an_epoch_is_drawn_as_one_batch_after_another():
    data, size = tiny_data(), 7
    recipe = DataRecipe("digits", crop_padding=2, flip=True)
    made = Batches(data, recipe, size=size, seed=3, device="cpu")
    of_rows, augmentation = (torch.Generator().manual_seed(seed) for seed in (3, 4))
    for epoch in range(2):
        rows = torch.randperm(40, generator=of_rows).split(size)
        batches = list(made.of_epoch(epoch))
        assert len(batches) == 5  # full ones
        for number, (images, targets) in enumerate(batches):
            shifts = torch.randint(0, 5, (2, size), generator=augmentation) - 2
            mirrored = torch.rand(size, generator=augmentation) < 0.5
            pixels = mirror(crop(data.train.images[rows[number]], shifts), mirrored)
            labels = data.train.labels[rows[number]]
            assert torch.equal(images, normalise(pixels, data.mean, data.std)), (epoch, number)
            assert torch.equal(targets, nn.functional.one_hot(labels, 2).float()), (epoch, number)


@pytest.mark.parametrize("border", ["black", "reflect"])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (True, True)], ids=str)
def test_batches_ask_the_host_for_nothing_after_the_start_of_the_epoch(flips, border):
    flip, alternate = flips
    recipe = DataRecipe(
        "digits", crop_padding=1, crop_border=border, flip=flip, alternate_flip=alternate
    )
    batches = Batches(tiny_data(), recipe, size=7, seed=0, device="meta").of_epoch(0)
    with host_traffic() as first:
        next(batches)
    with host_traffic() as later:
        assert len(list(batches)) == 4
    assert first.count("aten::_to_copy: from one to the other of cpu, meta") == 3
    assert later == []


def test_a_step_asks_the_host_for_nothing():
    recipe = dataclasses.replace(
        tiny_recipe(),
        model=ResNetRecipe(blocks_per_stage=1, width=3),
        optim=OptimRecipe(momentum=0.9),
        lookahead=LookaheadRecipe(2, 0.5),
    )
    made = Trainer(recipe, tiny_data(), Accelerator(cpu=True))
    batches = made._batches.of_epoch(0)
    made._train_on(*next(batches))
    with host_traffic() as seen:
        made._train_on(*next(batches))
    assert seen == []


def test_trained_network_is_saved_in_the_usual_layout(tmp_path, monkeypatch):
    """On CUDA it is trained with channels last."""
    recipe = dataclasses.replace(tiny_recipe(), model=ResNetRecipe(blocks_per_stage=1, width=3))
    honest = trainer.build_network
    last = torch.channels_last
    monkeypatch.setattr(
        trainer, "build_network", lambda *given: honest(*given).to(memory_format=last)
    )
    train(recipe, output=tmp_path / "run", data=tiny_data(), progress=False)
    weights = load_network(tmp_path / "run").state_dict()
    assert all(weight.is_contiguous() for weight in weights.values())


def test_image_mirrored_in_one_epoch_is_not_in_the_next():
    data = tiny_data(train=200)
    pixels = normalise(data.train.images, data.mean, data.std)
    recipe = DataRecipe("digits", crop_padding=0, flip=True, alternate_flip=True)

    def mirrored(made, epoch=0):
        seen = {}
        for images, _ in made.of_epoch(epoch):
            for image in images:
                for shown in (False, True):
                    row = (
                        (pixels == (image.flip(-1) if shown else image)).flatten(1).all(1).nonzero()
                    )
                    seen |= {int(row[0]): shown} if len(row) else {}
        return seen

    made = Batches(data, recipe, size=10, seed=0, device="cpu")
    first, second, third = (mirrored(made, epoch) for epoch in range(3))
    assert len(first) == 200
    assert second == {row: not shown for row, shown in first.items()}
    assert third == first
    assert abs(sum(first.values()) - 100) < 3.3 * (200 / 4) ** 0.5
    other = Batches(data, recipe, size=10, seed=7, device="cpu")
    assert mirrored(other) != first


def test_bias_of_the_stem_learns_in_its_epochs_alone():
    made = Trainer(tiny_speed_recipe(epochs=3), tiny_data(), Accelerator(cpu=True))
    found = [made.network.stem.bias.detach().clone()]
    for _ in range(3):
        made.run_epoch()
        found.append(made.network.stem.bias.detach().clone())
    assert not torch.equal(found[0], found[1])
    centres = made.network.stages[0].first.encoding.centres.detach().clone()
    recipe = dataclasses.replace(tiny_speed_recipe(epochs=3), lookahead=None)
    made = Trainer(
        recipe, tiny_data(), Accelerator(cpu=True)
    )  # an average brings earlier biases back
    made.run_epoch()
    after = made.network.stem.bias.detach().clone()
    made.run_epoch()
    assert torch.equal(made.network.stem.bias, after)
    assert not torch.equal(made.network.stages[0].first.encoding.centres, centres)


@pytest.mark.parametrize(
    "mixing", ["attention", "conv", "hard", "random", "random-frozen", "content"]
)
def test_every_mixing_trains_and_moves_the_centres_that_learn(mixing):
    made = Trainer(tiny_speed_recipe(mixing=mixing), tiny_data(), Accelerator(cpu=True))
    layer = made.network.stages[0].first
    before = None if mixing in ("conv", "hard") else layer.encoding.centres.detach().clone()
    result = made.run_epoch()
    assert 0 < result["train_loss"] < 10
    if before is not None:
        assert torch.equal(layer.encoding.centres, before) is (mixing == "random-frozen")


def test_record_counts_what_learns():
    counts = [
        train(
            tiny_speed_recipe(epochs=1, mixing=mixing), data=tiny_data(), progress=False
        ).parameters
        for mixing in ("random", "random-frozen")
    ]
    assert counts[0] - counts[1] == 4 * 27


def test_scores_of_views_are_averaged():
    made = Trainer(tiny_speed_recipe(), tiny_data(), Accelerator(cpu=True))
    made.run_epoch()
    data = tiny_data()
    images = normalise(data.test.images, data.mean, data.std)
    network = made.result.eval()
    with torch.inference_mode():
        scores = [network(view) for view in views(images, "mirror")]
    right = (sum(scores).argmax(1) == data.test.labels).double().mean().item()
    found = made.summary()
    assert found["views_accuracy"] == right
    assert found["views_loss"] != made.evaluate()[0]
    plain = dataclasses.replace(
        tiny_speed_recipe(), training=tiny_recipe().training, lookahead=None
    )
    made = Trainer(plain, tiny_data(), Accelerator(cpu=True))
    made.run_epoch()
    assert "views_loss" not in made.summary()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_the_metrics_of_each_epoch(tmp_path):
    train(
        tiny_recipe(),
        output=tmp_path / "run",
        data=tiny_data(),
        progress=False,
        trackers=["tensorboard"],
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (tmp_path / "run" / "tiny").glob("events*")
    events = EventAccumulator(str(file)).Reload().Scalars("test_accuracy")
    assert [event.step for event in events] == [5, 10]


def test_missing_tracker_says_how_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        MissingDependencyError, match=r'needs wandb.* pip install "convattn\[track\]"'
    ):
        train(tiny_recipe(), output=tmp_path / "run", data=tiny_data(), trackers=["wandb"])
    assert not (tmp_path / "run").exists()


def test_unknown_trackers_are_named(tmp_path, without_type_checks):
    for trackers, name in ((["wandbb"], "wandbb"), ("wandb", "w")):
        with pytest.raises(UnknownNameError, match=f"unknown tracker '{name}'"):
            train(tiny_recipe(), output=tmp_path / "run", data=tiny_data(), trackers=trackers)
    assert not (tmp_path / "run").exists()


def test_network_without_attention_is_not_pruned(tmp_path):
    recipe = dataclasses.replace(tiny_recipe(), model=ResNetRecipe(blocks_per_stage=1, width=3))
    train(recipe, output=tmp_path / "first", data=tiny_data(), progress=False)
    start = dataclasses.replace(
        recipe.start, recipe="tiny", folder=str(tmp_path / "first"), prune=True
    )
    message = r"^start\.prune needs an AttentionNet, but .*first holds a ResNet$"
    with pytest.raises(CheckpointError, match=message):
        train(dataclasses.replace(recipe, start=start), data=tiny_data(), progress=False)


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
    average = Lookahead(network, look, TOTAL)
    hi, lows = references(partial(followed, look), small_network())
    for step in range(1, TOTAL + 1):
        move(network, step)
        average.follow(network, step)
        found = torch.cat([value.flatten() for value in network.state_dict().values()])
        assert_within_budget(found, hi[step - 1].double(), [low[step - 1] for low in lows])
        if step % steps == 0 or step == TOTAL:
            for own, averaged in zip(
                network.state_dict().values(), average.module.state_dict().values(), strict=True
            ):
                assert torch.equal(own, averaged)
    assert network[1].num_batches_tracked == TOTAL
