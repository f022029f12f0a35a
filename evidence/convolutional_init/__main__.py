"""Whether starting the heads of a vision transformer near a convolution helps where images are few.

Trains one transformer (six layers of width 192, three heads, 4 × 4 patches) on 5,000 training images of CIFAR-10, from
the same random weights, as they are and as `init_heads_` starts them. Each start takes the learning rate with the
highest accuracy on 5,000 other training images, seed 8; then five seeds are tested on all test images. It has not been
run: the page is of an older study. What is trained is kept in WORK; writes starts.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.convolutional_init --work WORK
"""

from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from convattn import init_heads_
from convattn.data import ImageDataset, normalise
from evidence.results import add_work, cifar10, environment, kept, new_parser, publish

SEEDS = (3, 4, 5, 6, 7)
CHOICE = 8
"""Seed of the choice of rates."""

RATES = (3e-4, 1e-3, 3e-3)
EPOCHS, BATCH, IMAGES = 20, 50, 5000
VALUES = "mimetic values alone"
STARTS = ("as it is", "mimetic", "impulse", "exact", VALUES)
SIZES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 192,
    "depth": 6,
    "num_heads": 3,
}


def network(seed: int, start: str) -> tuple[nn.Module, tuple[float, ...]]:
    """Makes the transformer of a seed, and tells how much attention is on the taps of each layer."""
    torch.manual_seed(seed)
    vit = timm.models.VisionTransformer(**SIZES, num_classes=10)
    if start == "as it is":
        return vit, ()
    blocks: Any = vit.blocks
    before = [block.attn.qkv.weight.detach().clone() for block in blocks]
    kind = "mimetic" if start == VALUES else start
    masses = init_heads_(vit, kind)  # type: ignore[arg-type]
    if start == VALUES:
        width = SIZES["embed_dim"]
        with torch.no_grad():
            for block, weight in zip(blocks, before, strict=True):
                block.attn.qkv.weight[: 2 * width] = weight[: 2 * width]
    return vit, masses


def train(
    data: ImageDataset, seed: int, start: str, rate: float, *, choose: bool
) -> dict[str, Any]:
    """Trains one transformer, and tests it on held-out training images (`choose`) or on the test images."""
    images = normalise(data.train.images[: 2 * IMAGES], data.mean, data.std)
    labels = data.train.labels[: 2 * IMAGES]
    tests, answers = images[IMAGES:], labels[IMAGES:]
    if not choose:
        tests, answers = normalise(data.test.images, data.mean, data.std), data.test.labels
    model, masses = network(seed, start)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * IMAGES // BATCH)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(IMAGES, generator=order).split(BATCH):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return {"seed": seed, "rate": rate, "mass": masses, "accuracy": accuracy(model, tests, answers)}


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Returns the share of images that are classified rightly."""
    right = [model(part).argmax(1) for part in images.split(500)]
    return (torch.cat(right) == labels).double().mean().item()


def main() -> None:
    """Chooses the rate of each start, trains all seeds, and writes the record."""
    parser = new_parser(__doc__)
    add_work(parser)
    work = parser.parse_args().work
    data, runs = cifar10(), dict[str, Any]()
    for start in STARTS:
        name = start.replace(" ", "-")
        search = []
        for rate in RATES:
            trial = partial(train, data, CHOICE, start, rate, choose=True)
            search.append(kept(work / f"{name}-{rate}.json", trial))
        rate = max(search, key=lambda one: one["accuracy"])["rate"]
        found = []
        for seed in SEEDS:
            run = partial(train, data, seed, start, rate, choose=False)
            found.append(kept(work / f"{name}-{seed}.json", run))
        runs[start] = {"search": search, "runs": found}
    setting = environment("evidence.convolutional_init", "timm")
    publish(Path(__file__).with_name("starts.json"), {**setting, "starts": runs})


if __name__ == "__main__":
    main()
