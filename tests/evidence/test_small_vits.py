"""Small vision transformers: a stopped run goes on with the same random numbers."""

import json

import pytest
import torch

from convattn.data import ImageDataset, ImageSplit
from convattn.provenance import DataRecord
from evidence.trained_heads import small_vits
from evidence.trained_heads.small_vits import Run, batches, cutmix, load_small_vit, rate_at, train

SMALL = {
    "img_size": 32,
    "patch_size": 16,
    "num_classes": 10,
    "embed_dim": 8,
    "depth": 1,
    "num_heads": 2,
}
KINDS = [("vit", False), ("vit", True), ("convit", False)]


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(small_vits, "SIZES", dict.fromkeys(small_vits.SIZES, SMALL))
    torch.manual_seed(0)
    splits = [
        ImageSplit(
            torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (count,))
        )
        for count in (24, 10)
    ]
    record = DataRecord("noise", "drawn", {}, {"train": 24, "test": 10}, "as drawn")
    return ImageDataset(*splits, 10, (0.5,) * 3, (0.25,) * 3, record)


@pytest.mark.parametrize(("network", "mixed"), KINDS, ids=["plain", "cutmix", "convit"])
def test_a_stopped_run_goes_on_to_the_same_weights(network, mixed, data, tmp_path, monkeypatch):
    run = Run(seed=1, cutmix=mixed, epochs=3, batch=8, network=network)
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    train(run, data, tmp_path / "whole")
    epochs, once = [], small_vits.train_epoch

    def stop(*given):
        epochs.append(given[-1])
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return once(*given)

    monkeypatch.setattr(small_vits, "train_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        train(run, data, tmp_path / "stopped")
    train(run, data, tmp_path / "stopped")
    assert epochs == [0, 1, 1, 2]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    record = json.loads((tmp_path / "stopped" / "record.json").read_text())
    assert record["run"]["cutmix"] is mixed
    assert ("CutMix" in record["augmentation"]) is mixed
    assert not (tmp_path / "stopped" / "checkpoint.pt").exists()
    loaded = load_small_vit(tmp_path / "stopped")
    assert loaded(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert record["network"]["class"].removeprefix("timm.models.") == type(loaded).__name__


def test_a_run_with_other_settings_is_not_continued(data, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(small_vits, "accuracy", stop)
    monkeypatch.setattr(small_vits, "EVALUATED_EVERY", 2)
    with pytest.raises(KeyboardInterrupt):
        train(Run(seed=1, cutmix=False, epochs=4, batch=8), data, tmp_path)
    with pytest.raises(SystemExit, match="holds a run with other settings"):
        train(Run(seed=1, cutmix=False, epochs=5, batch=8), data, tmp_path)


def test_cutmix_is_in_half_of_the_batches(data):
    run = Run(seed=0, cutmix=True, epochs=1, batch=4)
    drawn = [targets for epoch in range(20) for _, targets in batches(data, run, epoch)]
    mixed = sum(bool((targets.max(1).values < 1).any()) for targets in drawn) / len(drawn)
    assert len(drawn) == 120
    assert 0.3 < mixed < 0.6  # a mixture of two images of one class, or of nothing, does not show


def test_a_cut_image_holds_one_box_of_its_partner_and_the_target_counts_its_pixels():
    numbers = torch.arange(11).float()
    images = numbers.view(-1, 1, 1, 1).expand(11, 3, 5, 7)
    for seed in range(20):
        pasted, shares = cutmix(images, torch.eye(11), torch.Generator().manual_seed(seed))
        for number, (image, share) in enumerate(zip(pasted, shares, strict=True)):
            foreign = image[0] != number
            rows, cols = foreign.any(dim=1), foreign.any(dim=0)
            assert torch.equal(foreign, rows[:, None] & cols[None, :])
            for side in (rows, cols):
                assert (side.int().diff().abs().sum() + side[0] + side[-1]) in (0, 2)
            partners = image[0][foreign].unique().long().tolist()
            assert len(partners) <= 1
            area = foreign.sum().item() / 35
            expected = torch.zeros(11, dtype=torch.float64)
            expected[number] += 1 - area
            expected[partners] += area
            assert (share - expected).abs().max() <= torch.finfo(torch.float32).eps


def test_the_rate_warms_up_and_falls_to_nothing():
    run = Run(seed=0, cutmix=False, epochs=3)
    rates = [rate_at(run, 10, step) for step in range(30)]
    assert rates[9] == rates[10] == run.rate
    assert rates[0] == pytest.approx(run.rate / 10)
    assert rates[-1] < run.rate / 100
