"""What becomes of one trained network: its conversions, tested on all test images and timed by turns."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate, Verdict
from convattn.data import ImageDataset, normalise
from convattn.lab.head_trace import quadratic_encodings
from convattn.layers import RelativeAttention
from convattn.networks import load_network
from convattn.provenance import RunRecord

KERNELS = (5, 11)
"""Kernels for attention that has learned as attention."""

CERTIFIED = 16
"""Test images on which certificates compare whole networks."""

BATCH = 100


@dataclass(frozen=True)
class Row:
    """One conversion of one trained network; times in seconds, for a batch."""

    run: str
    conversion: str
    layers: int
    exact: bool
    verdict: Verdict
    leak: float
    error: float | None
    rounding: float | None
    largest: float | None
    accuracy_before: float
    accuracy_after: float
    top1_changed: int
    seconds_before: float
    seconds_after: float
    ratio: float
    rounds: int
    weights_returned: bool | None
    certificate: dict[str, Any]


class Bench:
    """Test images, and the predictions of networks that have been tested."""

    def __init__(self, data: ImageDataset, rounds: int) -> None:
        """Takes the data set and the number of times that each of two networks is timed."""
        self.labels, self.rounds = data.test.labels, rounds
        self.images = normalise(data.test.images, data.mean, data.std)
        self._predictions: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()

    def predict(self, network: nn.Module) -> Tensor:
        """Returns the class that a network predicts for each test image."""
        if network not in self._predictions:
            with torch.no_grad():
                parts = [network(batch).argmax(1) for batch in self.images.split(BATCH)]
            self._predictions[network] = torch.cat(parts)
        return self._predictions[network]

    def accuracy(self, network: nn.Module) -> float:
        """Returns the share of test images that a network classifies rightly."""
        return (self.predict(network) == self.labels).double().mean().item()

    def times(self, before: nn.Module, after: nn.Module) -> tuple[float, float, float]:
        """Times both networks by turns on one batch: medians in seconds, and the median of the ratios."""
        batch = self.images[:BATCH]
        with torch.no_grad():
            for network in (before, after):
                network(batch)
            turns = [
                [clocked(network, batch) for network in (before, after)] for _ in range(self.rounds)
            ]
        first, second = zip(*turns, strict=True)
        return median(first), median(second), median(b / a for a, b in turns)

    def row(
        self,
        run: str,
        conversion: str,
        before: nn.Module,
        after: nn.Module,
        certificate: NetworkCertificate,
        *,
        returned: bool | None = None,
    ) -> Row:
        """Measures one conversion."""
        seconds_before, seconds_after, ratio = self.times(before, after)
        return Row(
            run=run,
            conversion=conversion,
            layers=len(certificate.layers),
            exact=certificate.exact,
            verdict=certificate.verdict,
            leak=max(layer.leak for layer in certificate.layers),
            error=certificate.measured_error,
            rounding=certificate.rounding,
            largest=certificate.largest,
            accuracy_before=self.accuracy(before),
            accuracy_after=self.accuracy(after),
            top1_changed=int((self.predict(before) != self.predict(after)).sum()),
            seconds_before=seconds_before,
            seconds_after=seconds_after,
            ratio=ratio,
            rounds=self.rounds,
            weights_returned=returned,
            certificate=json.loads(certificate.to_json()),
        )


def clocked(network: Callable[[Tensor], object], batch: Tensor) -> float:
    """Returns the seconds that a network takes for a batch."""
    start = time.perf_counter()
    network(batch)
    return time.perf_counter() - start


def convolutional(bench: Bench, folder: Path) -> list[Row]:
    """Converts a network that learned as convolutions: to attention on both paths, and back."""
    network, some, name = load_network(folder).eval(), bench.images[:CERTIFIED], folder.name
    made, certificate = network_to_attention(network, images=some)
    rows = [bench.row(name, "to attention, planned path", network, made, certificate)]
    made, certificate = network_to_attention(network, impl="separable", images=some)
    rows.append(bench.row(name, "to attention, softmax axis by axis", network, made, certificate))
    back, certificate = network_to_conv(made, images=some)
    found, state = back.state_dict(), network.state_dict()
    returned = found.keys() == state.keys() and all(
        torch.equal(found[key], state[key]) for key in state
    )
    rows.append(
        bench.row(name, "to attention and back", network, back, certificate, returned=returned)
    )
    made, certificate = network_to_attention(network, content=True, images=some)
    rows.append(
        bench.row(name, "to attention, content behind closed gates", network, made, certificate)
    )
    return rows


def attentional(bench: Bench, folder: Path) -> list[Row]:
    """Converts a network that learned as attention: to convolutions."""
    network, some, name, rows = (
        load_network(folder).eval(),
        bench.images[:CERTIFIED],
        folder.name,
        [],
    )
    for kernel in KERNELS:
        words = f"to {kernel} × {kernel} convolutions"
        made, certificate = network_to_conv(network, kernel_size=kernel, images=some)
        rows.append(bench.row(name, words, network, made, certificate))
    return rows


@dataclass(frozen=True)
class FineTuned:
    """One run that learned on after conversion, and its control; centres in pixels, gates as shares of attention."""

    seed: int
    epochs_before: int
    epochs_after: int
    sharpness_before: float
    content: bool
    trained: float
    converted: float
    fine_tuned: float
    control: float
    centres_moved: float
    centres_moved_most: float
    sharpness_least: float
    sharpness_most: float
    gate: float
    gate_most: float


def fine_tuned(bench: Bench, runs: Path, seed: int) -> FineTuned:
    """Compares a network that learned on as attention with one that learned on as convolutions."""
    names = ("resnet18", "resnet18-to-attention", "resnet18-longer")
    first, second, control = (
        RunRecord.load(runs / f"{name}-{seed}" / "record.json") for name in names
    )
    convert = second.recipe["convert"]
    start, _ = network_to_attention(
        load_network(runs / f"resnet18-{seed}").eval(),
        include=convert["include"],
        sharpness=convert["sharpness"],
        images=bench.images[:CERTIFIED],
    )
    end = load_network(runs / f"resnet18-to-attention-{seed}")
    pairs = list(zip(quadratic_encodings(start), quadratic_encodings(end), strict=True))
    moved = torch.cat([(new.centres - old.centres).norm(dim=1) for old, new in pairs])
    sharpness = torch.cat([torch.as_tensor(new.sharpness) for _, new in pairs])
    gates = [
        m.gate.tanh().abs()
        for m in end.modules()
        if isinstance(m, RelativeAttention) and m.gate is not None
    ]
    opened = torch.cat(gates) if gates else torch.zeros(1)
    return FineTuned(
        seed=seed,
        epochs_before=first.recipe["training"]["epochs"],
        epochs_after=second.recipe["training"]["epochs"],
        sharpness_before=convert["sharpness"],
        content=convert["content"],
        trained=first.results["test_accuracy"],
        converted=bench.accuracy(start),
        fine_tuned=second.results["test_accuracy"],
        control=control.results["test_accuracy"],
        centres_moved=moved.mean().item(),
        centres_moved_most=moved.max().item(),
        sharpness_least=sharpness.min().item(),
        sharpness_most=sharpness.max().item(),
        gate=opened.mean().item(),
        gate_most=opened.max().item(),
    )
