"""Trains a small vision transformer of timm on CIFAR-10, with or without CutMix, to have heads to look at.

A ViT, or a ConViT, whose heads start as a 3 × 3 convolution behind gates. Writes a folder OUTPUT/NETWORK-plain-SEED or
OUTPUT/NETWORK-cutmix-SEED with model.safetensors, metrics.jsonl and record.json. A run that was stopped goes on after
its last whole epoch, with the same random numbers:

    CONVATTN_CIFAR10=FOLDER python -m evidence.trained_heads.small_vits --output RUNS --seed 0 --cutmix
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from convattn.data import ImageDataset, horizontal_flip, normalise, random_crop
from convattn.files import file_sha256, new_file, sole_use, write_atomically
from evidence.results import cifar10, environment, new_parser

SIZES: dict[str, dict[str, Any]] = {
    "vit": {
        "img_size": 32,
        "patch_size": 4,
        "num_classes": 10,
        "embed_dim": 96,
        "depth": 6,
        "num_heads": 4,
    },
    "convit": {  # embed_dim counts channels of a head; the first blocks have gated heads
        "img_size": 32,
        "patch_size": 4,
        "num_classes": 10,
        "embed_dim": 12,
        "depth": 4,
        "num_heads": 9,
        "local_up_to_layer": 3,
    },
}
CLASSES: dict[str, type[nn.Module]] = {
    "vit": timm.models.VisionTransformer,
    "convit": timm.models.ConVit,
}
EVALUATION_BATCH = 500
EVALUATED_EVERY = 4  # epochs


@dataclass(frozen=True)
class Run:
    """What a run is to do."""

    seed: int  # Of the weights, the order of images and the augmentation
    cutmix: bool  # Whether half of the batches are mixed by CutMix with α = 1
    epochs: int
    batch: int = 256
    rate: float = 1e-3  # Highest learning rate: a warm-up of one epoch, then cosine to 0
    decay: float = 0.05  # Weight decay of matrices
    network: str = "vit"  # Or "convit"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.network}-{'cutmix' if self.cutmix else 'plain'}-{self.seed}"


def build(network: str = "vit", seed: int = 0) -> nn.Module:
    """Makes a transformer with the random weights of a seed."""
    torch.manual_seed(seed)
    return CLASSES[network](**SIZES[network])


def load_small_vit(folder: Path) -> nn.Module:
    """Loads the network of a finished run, in evaluation mode."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    model = build(record["run"].get("network", "vit"))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def batches(data: ImageDataset, run: Run, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the augmented batches of an epoch, which depend on the run and the number of the epoch alone."""
    generator = torch.Generator().manual_seed(1_000_003 * run.seed + epoch)
    order = torch.randperm(len(data.train), generator=generator)
    whole = len(order) // run.batch * run.batch
    for rows in order[:whole].split(run.batch):
        images = random_crop(data.train.images[rows], padding=4, generator=generator)
        images = normalise(horizontal_flip(images, generator=generator), data.mean, data.std)
        targets = nn.functional.one_hot(data.train.labels[rows], data.num_classes).float()
        if run.cutmix and torch.rand((), generator=generator) < 0.5:
            images, targets = cutmix(images, targets, generator)
        yield images, targets


def cutmix(images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pastes a box of another image of the batch into each, and mixes the targets by the share of pixels.

    The box has ⌊rows · √(1 − λ)⌋ rows, columns likewise, with λ uniform for each image; its centre is uniform over the
    pixels, and the border cuts it.

    Source: Yun, Han, Oh, Chun, Choe, Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable
    Features", ICCV 2019.
    """
    batch, _, rows, cols = images.shape
    partner = torch.randperm(batch, generator=generator)
    side = (1 - uniform_shares(batch, generator)).sqrt()
    row_inside = inside_box(rows, (rows * side).long(), generator)
    col_inside = inside_box(cols, (cols * side).long(), generator)
    pasted = row_inside[:, :, None] & col_inside[:, None, :]
    mixed = torch.where(pasted[:, None], images[partner], images)
    own = (1 - pasted.double().mean(dim=(1, 2)))[:, None]
    shares = own.to(targets.dtype) * targets + (1 - own).to(targets.dtype) * targets[partner]
    return mixed, shares


def uniform_shares(number: int, generator: torch.Generator) -> Tensor:
    """Draws uniform numbers as the case α = 1 of a draw of Beta(α, α), by which earlier runs are repeated exactly."""
    uniform, turn = torch.rand(2, number, generator=generator, dtype=torch.float64)
    exponent = uniform.log()
    odds = exponent.exp() / -exponent.expm1()
    cosine = (2 * math.pi * turn).cos()
    return (1 + cosine / (odds + cosine**2).sqrt()) / 2


def inside_box(pixels: int, sides: Tensor, generator: torch.Generator) -> Tensor:
    """Draws a centre for the box of each image along one axis, and returns which pixels are inside."""
    centre = torch.randint(pixels, sides.shape, generator=generator)
    offset = torch.arange(pixels) - (centre - sides // 2)[:, None]
    return (offset >= 0) & (offset < sides[:, None])


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Splits parameters into matrices, which decay, and others."""
    split: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        split[parameter.ndim > 1 and name not in ("cls_token", "pos_embed")].append(parameter)
    return [
        {"params": split[True], "weight_decay": decay},
        {"params": split[False], "weight_decay": 0.0},
    ]


def rate_at(run: Run, steps_per_epoch: int, step: int) -> float:
    """Returns the learning rate of a step, counted from 0."""
    if step < steps_per_epoch:
        return run.rate * (step + 1) / steps_per_epoch
    done = (step - steps_per_epoch) / max(1, (run.epochs - 1) * steps_per_epoch)
    return run.rate * (1 + math.cos(math.pi * done)) / 2


def train_epoch(
    model: nn.Module, optimiser: torch.optim.Optimizer, data: ImageDataset, run: Run, epoch: int
) -> float:
    """Trains for an epoch, in bfloat16 where autocast allows it, and returns the mean loss."""
    model.train()
    total, steps = 0.0, len(data.train) // run.batch
    for number, (images, targets) in enumerate(batches(data, run, epoch)):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(run, steps, epoch * steps + number)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        total += loss.item()
    return total / steps


def accuracy(model: nn.Module, data: ImageDataset) -> float:
    """Returns the share of test images that are classified rightly, in float32."""
    model.eval()
    images = data.test.images.split(EVALUATION_BATCH)
    with torch.inference_mode():
        classes = [model(normalise(part, data.mean, data.std)).argmax(1) for part in images]
    return (torch.cat(classes) == data.test.labels).double().mean().item()


def train(run: Run, data: ImageDataset, folder: Path) -> None:
    """Trains a network, or goes on where it was stopped, and writes its record last."""
    model = build(run.network, run.seed)
    for block in model.blocks:  # type: ignore[union-attr]
        block.attn.fused_attn = False  # backward in bfloat16, the fused one is five times slower
    optimiser = torch.optim.AdamW(parameter_groups(model, run.decay), lr=run.rate, fused=True)
    kept, metrics = folder / "checkpoint.pt", []
    if kept.is_file():
        state = torch.load(kept, weights_only=True)
        if state["run"] != asdict(run):
            raise SystemExit(f"{folder} holds a run with other settings: {state['run']}")
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        metrics = state["metrics"]
    for epoch in range(len(metrics), run.epochs):
        started, cpu = time.perf_counter(), time.process_time()
        row = {"epoch": epoch + 1, "loss": train_epoch(model, optimiser, data, run, epoch)}
        row["seconds"] = time.perf_counter() - started
        row["cpu_seconds"] = time.process_time() - cpu
        if (epoch + 1) % EVALUATED_EVERY == 0 or epoch + 1 == run.epochs:
            row["test_accuracy"] = accuracy(model, data)
        metrics.append(row)
        print(f"{run.name}: {json.dumps(row)}", flush=True)
        state = {
            "run": asdict(run),
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "metrics": metrics,
        }
        with new_file(kept) as file:
            torch.save(state, file)
        lines = "".join(json.dumps(item) + "\n" for item in metrics)
        write_atomically(folder / "metrics.jsonl", lines)
    with new_file(folder / "model.safetensors") as file:
        save_file(model.state_dict(), file)
    mixed = ", CutMix on half of the batches" if run.cutmix else ""
    record = {
        **environment("evidence.trained_heads.small_vits", "timm", "numpy"),
        "run": asdict(run),
        "network": {"class": f"timm.models.{type(model).__name__}", **SIZES[run.network]},
        "augmentation": f"crops with 4 black pixels around, flips{mixed}",
        "test_accuracy": metrics[-1]["test_accuracy"],
        "seconds": sum(row["seconds"] for row in metrics),
        "cpu_seconds": sum(row["cpu_seconds"] for row in metrics),
        "weights_sha256": file_sha256(folder / "model.safetensors"),
        "data": json.loads(data.record.to_json()),
    }
    write_atomically(folder / "record.json", json.dumps(record, indent=1) + "\n")
    kept.unlink()


def main() -> None:
    """Trains one network, unless it is trained already."""
    parser = new_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs"), help="folder for runs")
    parser.add_argument("--network", choices=sorted(SIZES), default="vit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cutmix", action="store_true", help="mix half of the batches by CutMix")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    run = Run(options.seed, options.cutmix, options.epochs, network=options.network)
    folder = options.output / run.name
    if (folder / "record.json").is_file():
        raise SystemExit(f"{folder} holds a finished run")
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_use(folder):
        train(run, cifar10(), folder)


if __name__ == "__main__":
    main()
