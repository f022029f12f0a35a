"""What becomes of one trained network: its conversions, tested on all test images and timed by turns."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from benchmarks.measure import ratios, time_rounds
from convattn import load_network, network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.data import ImageDataset, normalise
from convattn.lab.head_trace import shaped_encodings
from convattn.layers import RelativeAttention
from convattn.provenance import RunRecord

KERNELS = (5, 11)
"""Kernels for attention that has learned as attention."""

CERTIFIED = 16
"""Test images on which certificates compare whole networks."""

BATCH = 100


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

    def times(self, before: nn.Module, after: nn.Module) -> dict[str, float]:
        """Times both networks by turns on one batch: medians in seconds, and the median of the ratios."""
        batch = self.images[:BATCH]
        calls = {"before": partial(before, batch), "after": partial(after, batch)}
        with torch.no_grad():
            seconds = time_rounds(calls, rounds=self.rounds)
        return {
            "seconds_before": median(seconds["before"]),
            "seconds_after": median(seconds["after"]),
            "ratio": median(ratios(seconds, "before")["after"]),
            "rounds": self.rounds,
        }

    def row(
        self,
        run: str,
        conversion: str,
        before: nn.Module,
        after: nn.Module,
        certificate: NetworkCertificate,
    ) -> dict[str, Any]:
        """Measures one conversion; times are in seconds, for a batch."""
        modes = {layer.padding_mode for layer in after.modules() if isinstance(layer, nn.Conv2d)}
        return {
            "run": run,
            "conversion": conversion,
            "layers": len(certificate.layers),
            "exact": certificate.exact,
            "verdict": certificate.verdict,
            "leak": max(layer.leak for layer in certificate.layers),
            "error": certificate.measured_error,
            "rounding": certificate.rounding,
            "largest": certificate.largest,
            "accuracy_before": self.accuracy(before),
            "accuracy_after": self.accuracy(after),
            "top1_changed": int((self.predict(before) != self.predict(after)).sum()),
            **self.times(before, after),
            "weights_returned": None,
            "padding": " and ".join(sorted(modes)),
            "certificate": json.loads(certificate.to_json()),
        }


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Tells whether two networks have the same tensors, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    tensors = [name for name, item in first.items() if isinstance(item, Tensor)]
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in tensors
    )


def convolutional(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    """Converts a network that learned as convolutions: to attention on both paths, and back."""
    network, name = load_network(folder).eval(), folder.name
    images = bench.images[:CERTIFIED]
    planned, certificate = network_to_attention(network, images=images)
    yield bench.row(name, "to attention, planned path", network, planned, certificate)
    soft, certificate = network_to_attention(network, impl="separable", images=images)
    yield bench.row(name, "to attention, softmax axis by axis", network, soft, certificate)
    back, certificate = network_to_conv(planned, images=images)
    row = bench.row(name, "to attention and back", network, back, certificate)
    yield {**row, "weights_returned": same_weights(back, network)}
    gated, certificate = network_to_attention(network, content=True, images=images)
    yield bench.row(name, "to attention, content behind closed gates", network, gated, certificate)


def attentional(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    """Converts a network that learned as attention: to convolutions."""
    network = load_network(folder).eval()
    for kernel in KERNELS:
        images = bench.images[:CERTIFIED]
        convolutions, certificate = network_to_conv(network, kernel_size=kernel, images=images)
        words = f"to {kernel} × {kernel} convolutions"
        yield bench.row(folder.name, words, network, convolutions, certificate)


def fine_tuned(bench: Bench, runs: Path, seed: int) -> dict[str, Any]:
    """Compares a network that learned on as attention with one that learned on as convolutions.

    Centres are in pixels, gates are shares of attention.
    """
    names = ("resnet18", "resnet18-to-attention", "resnet18-longer")
    folders = [runs / f"{name}-{seed}" for name in names]
    first, second, control = (RunRecord.load(folder / "record.json") for folder in folders)
    convert = second.recipe["convert"]
    start, _ = network_to_attention(
        load_network(folders[0]).eval(),
        include=convert["include"],
        sharpness=convert["sharpness"],
        images=bench.images[:CERTIFIED],
    )
    end = load_network(folders[1])
    moved, sharpness = [], []
    for old, new in zip(shaped_encodings(start), shaped_encodings(end), strict=True):
        moved.append((new.centres - old.centres).norm(dim=1))
        sharpness.append(torch.as_tensor(new.sharpness))
    layers = [layer for layer in end.modules() if isinstance(layer, RelativeAttention)]
    gates = [layer.gate.tanh().abs() for layer in layers if layer.gate is not None]
    opened = torch.cat(gates) if gates else torch.zeros(1)
    return {
        "seed": seed,
        "epochs_before": first.recipe["training"]["epochs"],
        "epochs_after": second.recipe["training"]["epochs"],
        "sharpness_before": convert["sharpness"],
        "content": convert["content"],
        "trained": first.results["test_accuracy"],
        "converted": bench.accuracy(start),
        "fine_tuned": second.results["test_accuracy"],
        "control": control.results["test_accuracy"],
        "centres_moved": torch.cat(moved).mean().item(),
        "centres_moved_most": torch.cat(moved).max().item(),
        "sharpness_least": torch.cat(sharpness).min().item(),
        "sharpness_most": torch.cat(sharpness).max().item(),
        "gate": opened.mean().item(),
        "gate_most": opened.max().item(),
    }
