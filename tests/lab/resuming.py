"""Runs that are cut off and taken up again."""

import json

import pytest
from pyarrow import parquet
from tests.lab.tiny import tiny_data, tiny_recipe

from convattn.lab import train
from convattn.lab.trainer import Trainer

RECIPE = tiny_recipe(epochs=2, dropout=0.2)  # two epochs of five steps


def timeless(folder):
    """What a run leaves behind, but for how long it took."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    untimed = [
        {key: row[key] for key in row if key not in ("seconds", "images_per_second")}
        for row in metrics
    ]
    heads = parquet.read_table(folder / "heads.parquet").to_pylist()
    return (folder / "model.safetensors").read_bytes(), untimed, heads


def cut_off(monkeypatch, folder, *, step, recipe=RECIPE, checkpoint_every=1):
    """Trains until a step fails."""
    honest = Trainer._train_on

    def fail_at_step(trainer, *batch):
        if trainer.step == step:
            raise KeyboardInterrupt
        return honest(trainer, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_on", fail_at_step)
        with pytest.raises(KeyboardInterrupt):
            train(
                recipe,
                output=folder,
                data=tiny_data(),
                progress=False,
                checkpoint_every=checkpoint_every,
            )


def resume(folder, recipe=RECIPE, **options):
    return train(recipe, output=folder, data=tiny_data(), progress=False, resume=True, **options)


def newest(folder):
    return max((folder / "checkpoints").glob("step-*"))


def truncate(checkpoint):
    """Cuts the weights of a checkpoint off."""
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
