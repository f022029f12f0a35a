"""Training steps of the paper's network: the path that the layers choose, the reference path, and as published."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from convattn.benchmark.build import Setting, path_taken, seeded
from convattn.benchmark.cases import NetworkSize, TrainingCase
from convattn.benchmark.correctness import judge
from convattn.benchmark.measure import time_rounds
from convattn.benchmark.published import PublishedAttention
from convattn.benchmark.record import CaseResult, Check, Measurement
from convattn.functional.rounding import rounded_differently
from convattn.layers import RelativeAttention
from convattn.models import AttentionNet

__all__ = ["run_training_case"]

_CLASSES = 10
_LEARNING_RATE = 0.05
_ROUNDINGS = 3
_NOTES = {
    "convattn": 'impl="auto"',
    "reference": "the readable path in every layer",
    "published": "the published formulation in every layer",
}


def run_training_case(case: TrainingCase, setting: Setting, rounds: int) -> CaseResult:
    """Compares the losses of all on a small network, then times steps of the large one in turns.

    Args:
        case: The case.
        setting: Device and dtype.
        rounds: Number of rounds.

    Returns:
        What was found; a path whose losses are wrong has no times.
    """
    images, labels = _draw(case.network, case.seed, setting)
    networks = {name: _as(name, _network(case.network, case.dropout, case.seed, setting)) for name in _NOTES}
    checks = {name: _compare_losses(case, setting, name) for name in networks}
    steps = {name: _stepper(networks[name], images, labels) for name, check in checks.items() if check.passed}
    seconds = time_rounds(steps, rounds=rounds, device=setting.torch_device)
    measurements = []
    for name, network in networks.items():
        first = network.blocks[0].mixer
        path = path_taken(first, len(images), case.network.image // 2) if isinstance(first, RelativeAttention) else None
        note = _NOTES[name] + (f"; {_compared(case)}" if name == "convattn" else "")
        times = seconds.get(name, ())
        measurements.append(Measurement(name, note, path, checks[name], times, None, "", None))
    return CaseResult(case.name, case.title, case.network.batch, tuple(measurements))


def _compare_losses(case: TrainingCase, setting: Setting, name: str) -> Check:
    """Compares losses of the small network with those of the reference path in float64.

    What rounding may do is seen on the reference path in the setting's dtype, from the images and from images rounded
    otherwise; for that path itself only from the latter.

    Returns:
        The check.
    """
    images, labels = _draw(case.small, case.seed, setting)
    roads = [rounded_differently(images, seed) for seed in range(_ROUNDINGS)]
    if name != "reference":
        roads.append(images)

    def losses(by: str, road: Tensor) -> dict[str, Tensor]:
        network = _as(by, _network(case.small, 0.0, case.seed, setting))
        return {"losses": _train(network.to(road.dtype), road, labels, case.steps)}

    return judge(losses(name, images), losses("reference", images.double()), [losses("reference", x) for x in roads])


def _compared(case: TrainingCase) -> str:
    small = case.small
    sizes = f"width {small.width}, {small.depth} blocks, {small.image}×{small.image} images, batch {small.batch}"
    return f"the losses of {case.steps} steps are compared on {sizes}, without dropout"


def _network(size: NetworkSize, dropout: float, seed: int, setting: Setting) -> AttentionNet:
    """Draws a network, in training mode."""
    with seeded(seed):
        network = AttentionNet(
            "quadratic",
            width=size.width,
            depth=size.depth,
            heads=size.heads,
            ffn=size.ffn,
            dropout=dropout,
            image_size=size.image,
            initializer_range=0.02 * (400 / size.width) ** 0.5,
        )
    return setting.place(network, training=True)


def _as(name: str, network: AttentionNet) -> AttentionNet:
    """Makes a network compute as one of the contenders does, and returns it."""
    for block in network.blocks:
        assert isinstance(block.mixer, RelativeAttention)
        if name == "published":
            block.mixer = PublishedAttention(block.mixer)
        elif name == "reference":
            block.mixer.impl = name
    return network.train()


def _draw(
    size: NetworkSize, seed: int, setting: Setting
) -> tuple[Float[Tensor, "batch channels rows cols"], Int[Tensor, " batch"]]:
    """Draws standard normal images and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size.batch, 3, size.image, size.image, generator=generator)
    labels = torch.randint(_CLASSES, (size.batch,), generator=generator)
    return images.to(device=setting.torch_device, dtype=setting.torch_dtype), labels.to(setting.torch_device)


def _stepper(network: AttentionNet, images: Tensor, labels: Tensor) -> Callable[[], Float[Tensor, ""]]:
    """Makes the function that trains a network for one step and returns the loss before it."""
    optimizer = torch.optim.SGD(network.parameters(), lr=_LEARNING_RATE, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _train(network: AttentionNet, images: Tensor, labels: Tensor, steps: int) -> Float[Tensor, " steps"]:
    """Trains a network on one batch and returns the loss of every step."""
    step = _stepper(network, images, labels)
    return torch.stack([step() for _ in range(steps)])
