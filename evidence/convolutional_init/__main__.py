"""Whether starting a vision transformer as a convolution helps where images are few: handwritten digits, some seeds.

Trains one small transformer from the same random weights as it is, and as `convolutional_init` starts it. Writes
convolutional-init.json and the page convolutional-init.md:

    python -m evidence.convolutional_init
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from convattn import convolutional_init
from convattn.data import load_digits, normalise
from convattn.lab.tables import markdown_table
from evidence.results import environment, new_parser, publish
from evidence.studies import spread

SEEDS = (0, 1, 2)
EPOCHS = (2, 5, 15)
BATCH = 50
RATE = 2e-3
SIZES = {
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "num_classes": 10,
    "embed_dim": 36,
    "depth": 3,
    "num_heads": 9,
}
POOL = {"class_token": False, "global_pool": "avg"}
STARTS: dict[str, dict[str, Any] | None] = {
    "as it is": None,
    "gated, hard heads": {},
    "gated, α = 5": {"sharpness": 5},
    "gated, α = 5, half content": {"sharpness": 5, "content_share": 0.5},
    "without content, hard heads": {"content": False},
}

PAGE = """\
# A vision transformer that starts as a convolution

Does it help? One small transformer, trained on {images} handwritten digits from the same random weights as it is, and
as [`convolutional_init`](../explanation/vision-transformers.md) starts it with 3 × 3 patches and nine heads. Accuracy
on {tests} other digits in per cent, mean ± standard deviation over {count} seeds (weights and order of images):

{table}

{verdict}
All starts have one learning rate and few epochs; the network as it is may need more of either.

## How it was measured

    python -m evidence.convolutional_init

timm's `VisionTransformer` on the 8 × 8 digits of scikit-learn, 2 × 2 pixels a patch, width 36, 3 layers, 9 heads of
width 4, the mean over patches for the classes. AdamW, learning rate {rate}, decay 0.05 on matrices but the centres,
batches of {batch}, no augmentation, cosine to 0 over {epochs} epochs. {hardware[processor]}, {hardware[threads]}
thread(s), torch {versions[torch]}, timm {versions[timm]}, revision {revision}. All numbers are in
[convolutional-init.json](../../evidence/convolutional_init/convolutional-init.json); its seconds were taken while
other programs ran, and compare nothing.

Not covered: natural images, larger networks, augmentation, learning rates chosen for each start, longer training.
"""


def network(seed: int, start: dict[str, Any] | None) -> nn.Module:
    """Makes the transformer of a seed, as it is or started as a convolution."""
    torch.manual_seed(seed)
    vit = timm.models.VisionTransformer(**SIZES, **POOL)
    if start is None:
        return vit
    made, record = convolutional_init(vit, **start)
    assert record.verdict != "failed", record.summary()
    return made


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Splits parameters into those that decay, matrices but the centres, and others."""
    split: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim > 1 and not name.endswith(("centres", "cls_token", "pos_embed"))
        split[matrix].append(parameter)
    return [
        {"params": split[True], "weight_decay": 0.05},
        {"params": split[False], "weight_decay": 0.0},
    ]


def train(seed: int, start: dict[str, Any] | None) -> dict[str, Any]:
    """Trains one transformer, and writes its accuracy down after some of the epochs."""
    digits = load_digits()
    images = normalise(digits.train.images, digits.mean, digits.std)
    tests = normalise(digits.test.images, digits.mean, digits.std)
    model, whole = network(seed, start), len(images) // BATCH
    steps = EPOCHS[-1] * whole
    optimiser = torch.optim.AdamW(groups(model), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    order = torch.Generator().manual_seed(seed)
    accuracy, before = {}, time.perf_counter()
    for epoch in range(1, EPOCHS[-1] + 1):
        for rows in torch.randperm(len(images), generator=order).split(BATCH)[:whole]:
            loss = nn.functional.cross_entropy(model(images[rows]), digits.train.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if epoch in EPOCHS:
            with torch.no_grad():
                right = model.eval()(tests).argmax(1) == digits.test.labels
            model.train()
            accuracy[str(epoch)] = right.double().mean().item()
    return {
        "seed": seed,
        "accuracy": accuracy,
        "seconds": time.perf_counter() - before,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def table(runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """Tabulates means and standard deviations."""
    rows = []
    for name, seeds in runs.items():
        cells = []
        for epochs in EPOCHS:
            accuracies = [run["accuracy"][f"{epochs}"] for run in seeds]
            cells.append(spread(accuracies, 1).removesuffix(" %"))
        rows.append([name, *cells, f"{seeds[0]['parameters']:,}"])
    heads = [f"after {epochs} epochs" for epochs in EPOCHS]
    return markdown_table(["start", *heads, "parameters"], rows)


def verdict(runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """Words what the seeds agree on: starts that are better, or worse, than the network as it is with every seed."""
    last, above, below = f"{EPOCHS[-1]}", list[str](), list[str]()
    for name, seeds in runs.items():
        pairs = zip(seeds, runs["as it is"], strict=True)
        gains = [run["accuracy"][last] - plain["accuracy"][last] for run, plain in pairs]
        if min(gains) > 0:
            above.append(f"“{name}”")
        elif max(gains) < 0:
            below.append(f"“{name}”")
    sides = [f"above the network as it is: {', '.join(above)}"] if above else []
    sides += [f"below the network as it is: {', '.join(below)}"] if below else []
    if not sides:
        return "At the end no start is ahead with every seed."
    return f"At the end, with every seed {'; '.join(sides)}."


def page(content: Mapping[str, Any]) -> str:
    """Words the result; every number comes from the runs."""
    runs = content["runs"]
    digits = load_digits()
    return PAGE.format(
        images=len(digits.train),
        tests=len(digits.test),
        count=len(SEEDS),
        table=table(runs),
        verdict=verdict(runs),
        rate=RATE,
        batch=BATCH,
        epochs=EPOCHS[-1],
        **content,
    )


def main() -> None:
    """Trains all starts with all seeds and writes the results."""
    new_parser(__doc__).parse_args()
    setting = environment("evidence.convolutional_init", "timm")
    runs = {name: [train(seed, start) for seed in SEEDS] for name, start in STARTS.items()}
    record = Path(__file__).with_name("convolutional-init.json")
    content = {"runs": runs, **setting}
    publish(record, content)


if __name__ == "__main__":
    main()
