"""What `certify` finds: faults planted in 60 networks, and right conversions of the same networks.

Each network gets the same faults, and each damaged network is then converted in a right way: another memory layout,
batch normalisation merged into convolutions, or attention. The network itself is converted in that way, too, and is
exported for ONNX Runtime and OpenVINO. Beside every verdict stands what a comparison of the outputs with a chosen
tolerance says. Writes certify.json:

    python -m evidence.certify --work WORK
"""

import ast
import copy
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convattn import certify, network_to_attention
from convattn.lab.tables import markdown_table
from evidence.results import environment, kept, new_parser, publish
from evidence.runtimes import onnx_runtime, openvino

BUILT: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "resnet18": (torchvision.models.resnet18, 48),
    "regnetx_002": (partial(timm.create_model, "regnetx_002"), 48),
    "mobilenetv2_050": (partial(timm.create_model, "mobilenetv2_050"), 64),
}
"""Networks of torchvision and timm, with random weights, and the size of their images."""

RANDOM_CNNS, RANDOM_VITS = 41, 16
IMAGES, CLASSES = 6, 10
CHANGES = (1e-3, 1e-4, 1e-5, 1e-6)
CHOSEN = (1e-3, 1e-5)
"""Tolerances that someone might choose, relative and absolute."""


class Residual(nn.Module):
    """A body beside the identity."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - as the class says
        return x + self.body(x)


class Attention(nn.Module):
    """Softmax attention of tokens with two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - as the class says
        half = self.width // 2
        q, k, v = self.qkv(x).unflatten(2, (3, 2, half)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT / half**0.5).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Tokens(nn.Module):
    """Pixels of a feature map as tokens."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - as the class says
        return x.flatten(2).transpose(1, 2)


class Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - as the class says
        return x.mean(1)


def random_cnn(draw: random.Random) -> nn.Module:
    """Draws a network of three to six convolutions."""
    width = draw.choice([8, 12, 16])
    first = nn.Conv2d(3, width, 3, padding=1, bias=draw.random() < 0.5)
    parts: list[nn.Module] = [first, nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(draw.randint(2, 5)):
        act = draw.choice([nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish])()
        size, groups = draw.choice([1, 3, 3, 5]), draw.choice([1, 1, 2, width])
        options = {"padding": size // 2, "groups": groups, "bias": draw.random() < 0.5}
        conv = nn.Conv2d(width, width, size, **options)
        norms = [nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.GroupNorm(2, width)]
        norm = draw.choice([*norms, nn.Identity()])
        block = Residual if draw.random() < 0.5 else nn.Sequential
        parts.append(block(conv, norm, act))
        if draw.random() < 0.3:
            wider = width + draw.choice([4, 8])
            parts.append(nn.Conv2d(width, wider, 3, stride=2, padding=1))
            width = wider
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def random_vit(draw: random.Random) -> nn.Module:
    """Draws a transformer of two or three blocks on patches."""
    width, patch = draw.choice([16, 24, 32]), draw.choice([4, 8])
    parts: list[nn.Module] = [nn.Conv2d(3, width, patch, stride=patch), Tokens()]
    for _ in range(draw.randint(2, 3)):
        parts.append(Residual(nn.LayerNorm(width), Attention(width)))
        mlp = (nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        parts.append(Residual(nn.LayerNorm(width), *mlp))
    return nn.Sequential(*parts, nn.LayerNorm(width), Mean(), nn.Linear(width, CLASSES))


def filled(network: nn.Module) -> nn.Module:
    """Gives normalisation statistics and weights that do something."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.5)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
    return network.eval()


def networks() -> Iterator[tuple[int, str, nn.Module, Tensor]]:
    """Yields the 60 networks, each with its place in its family and its images."""
    for kind, make, count in (("cnn", random_cnn, RANDOM_CNNS), ("vit", random_vit, RANDOM_VITS)):
        for seed in range(count):
            torch.manual_seed(seed)
            network = filled(make(random.Random(seed)))
            yield seed, f"{kind}-{seed}", network, torch.randn(IMAGES, 3, 24, 24)
    for place, (name, (build, size)) in enumerate(BUILT.items()):
        torch.manual_seed(0)
        yield place, name, filled(build(num_classes=CLASSES)), torch.randn(IMAGES, 3, size, size)


# --- Right conversions ------------------------------------------------------------------------------------------------


def fold(network: nn.Module, _: Tensor) -> nn.Module:
    """Merges every batch normalisation that stands behind a convolution into it."""
    leaves = [item for item in network.named_modules() if not [*item[1].children()]]
    for (first, conv), (second, norm) in pairwise(leaves):
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d:
            network.set_submodule(first, fuse_conv_bn_eval(conv, norm))
            network.set_submodule(second, nn.Identity())
    return network


def to_attention(network: nn.Module, images: Tensor) -> nn.Module:
    """Turns every convolution into attention."""
    return network_to_attention(network, images=images[:1])[0]


RUNTIMES = {"onnxruntime": onnx_runtime, "openvino": openvino}

CONVERSIONS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "channels last": lambda network, _: network.to(memory_format=torch.channels_last),
    "folded": fold,
    "attention": to_attention,
}

# --- Faults -----------------------------------------------------------------------------------------------------------


def weighted(network: nn.Module) -> dict[str, Any]:
    """Finds the convolutions and linear maps."""
    kinds, layers = (nn.Conv2d, nn.Linear), network.named_modules()
    return {name: layer for name, layer in layers if isinstance(layer, kinds)}


def square(network: nn.Module) -> dict[str, Any]:
    """Finds the layers with square kernels, or square matrices."""
    layers = {}
    for name, layer in weighted(network).items():
        rows, columns = layer.weight.shape[-2:]
        if rows == columns > 1:
            layers[name] = layer
    return layers


def padded(network: nn.Module) -> dict[str, Any]:
    """Finds the convolutions that pad."""

    def pads(layer: nn.Module) -> bool:
        return type(layer) is nn.Conv2d and layer.padding not in (0, (0, 0))

    return {name: layer for name, layer in network.named_modules() if pads(layer)}


def biased(network: nn.Module) -> dict[str, Any]:
    """Finds the biases that are not zero, by the names of their layers."""
    biases = {}
    for name, parameter in network.named_parameters():
        if name.endswith(".bias") and parameter.any():
            biases[name.removesuffix(".bias")] = parameter
    return biases


def change_weight(layer: Any, draw: random.Random, *, by: float) -> None:
    """Adds to one weight."""
    weight = layer.weight.data.view(-1)
    weight[draw.randrange(len(weight))] += by


def swap_axes(layer: Any, _: random.Random) -> None:
    """Swaps two axes of the weight."""
    layer.weight.data = layer.weight.data.mT.contiguous()


def pad_otherwise(layer: Any, _: random.Random) -> None:
    """Repeats border pixels where zeros belong."""
    layer.padding_mode = "replicate"


def drop_bias(bias: Any, _: random.Random) -> None:
    """Sets a bias to zero."""
    bias.data.zero_()


def halve(layer: Any, _: random.Random) -> None:
    """Rounds the weights to float16."""
    layer.weight.data = layer.weight.data.half().float()


FAULTS = {
    **{f"weight by {by:.0e}": (weighted, partial(change_weight, by=by)) for by in CHANGES},
    "swapped axes": (square, swap_axes),
    "wrong padding": (padded, pad_otherwise),
    "dropped bias": (biased, drop_bias),
    "half precision": (weighted, halve),
}
"""Where a fault can be, and what makes it."""


def plant(fault: str, network: nn.Module, draw: random.Random) -> str | None:
    """Makes a fault somewhere; returns the name of the layer, None if the network has no place for it."""
    places, damage = FAULTS[fault]
    found = places(network)
    if not found:
        return None
    name = draw.choice([*found])
    damage(found[name], draw)
    return name


IN_FILES = {f"weight by {by:.0e}, in the file": by for by in (1e-3, 1e-5)}


def damage_file(
    source: Path, target: Path, network: nn.Module, draw: random.Random, by: float
) -> str | None:
    """Adds to one weight of an ONNX file; returns the layer of the node that takes it, None if no weight has a name.

    Where the exporter merged a normalisation into a convolution, the node is that of the normalisation.
    """
    model, names = onnx.load(source), {f"{name}.weight" for name in weighted(network)}
    tensors = [one for one in model.graph.initializer if one.name in names]
    if not tensors:
        return None
    tensor = draw.choice(tensors)
    values = np.array(onnx.numpy_helper.to_array(tensor))
    values.reshape(-1)[draw.randrange(values.size)] += by
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, target)
    node = next(one for one in model.graph.node if tensor.name in one.input)
    properties = {one.key: one.value for one in node.metadata_props}
    return ast.literal_eval(properties["pkg.torch.onnx.name_scopes"])[-2]


# --- Measurement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One comparison."""

    network: str
    conversion: str  # What was compared with the network
    fault: str | None  # None in a right conversion
    layer: str | None  # Where the fault is
    verdict: str
    first: str | None  # The layer that the certificate names
    measured_error: float
    rounding: float
    largest: float
    effect: float | None  # Largest change of outputs by the fault, in float64; None: not measured
    allclose: Sequence[bool]  # Whether outputs agree within each of the chosen tolerances

    @property
    def named(self) -> bool:
        """Whether the layer that is named is the damaged one."""
        return self.layer is not None and self.first == self.layer

    @property
    def found(self) -> bool:
        """Whether the certificate raised an alarm."""
        return self.verdict != "exact"

    @property
    def hidden(self) -> bool:
        """Whether the fault changes no output by as much as the last digit of the largest."""
        digit = torch.finfo(torch.float32).eps * self.largest
        return self.effect is not None and self.effect <= digit


def agree(plain: Tensor, other: Tensor) -> tuple[bool, ...]:
    """Compares with each chosen tolerance, as `allclose` does."""
    difference, size = (plain - other).abs(), plain.abs()
    return tuple(bool((difference <= limit + limit * size).all()) for limit in CHOSEN)


def outputs(network: nn.Module, images: Tensor) -> Tensor:
    """Computes the outputs in float64."""
    return copy.deepcopy(network).double()(images.double())


@torch.no_grad()
def measure(
    place: int, name: str, network: nn.Module, images: Tensor, work: Path
) -> Iterator[Case]:
    """Yields every comparison of one network."""
    plain, exact = network(images), outputs(network, images)

    def compare(
        conversion: str, other: Any, computed: Tensor, fault: str | None = None, **facts: Any
    ) -> Case:
        runtime: dict[str, Any] = {"runtime": conversion} if conversion in RUNTIMES else {}
        certificate = certify(network, other, images, **runtime)
        numbers = ("verdict", "first", "measured_error", "rounding", "largest")
        facts = {"layer": None, "effect": None} | facts
        facts |= {number: getattr(certificate, number) for number in numbers}
        return Case(name, conversion, fault, allclose=agree(plain, computed), **facts)

    kinds = [*CONVERSIONS]
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        kinds.remove("folded")
    kind = kinds[place % len(kinds)]
    right = CONVERSIONS[kind](copy.deepcopy(network), images)
    yield compare(kind, right, right(images))
    for fault in FAULTS:
        damaged = copy.deepcopy(network)
        layer = plant(fault, damaged, random.Random(f"{name} {fault}"))
        if layer is not None:
            effect = (outputs(damaged, images) - exact).abs().max().item()
            other = CONVERSIONS[kind](damaged, images)
            yield compare(kind, other, other(images), fault, layer=layer, effect=effect)
    path, wrong = work / "network.onnx", work / "wrong.onnx"
    torch.onnx.export(network, (images,), path, dynamo=True, verbose=False, external_data=False)
    for runtime, load in RUNTIMES.items():
        yield compare(runtime, path, load(path)(images))
    for fault, by in IN_FILES.items():
        layer = damage_file(path, wrong, network, random.Random(f"{name} {fault}"), by)
        if layer is not None:
            yield compare("onnxruntime", wrong, onnx_runtime(wrong)(images), fault, layer=layer)


# --- The page ---------------------------------------------------------------------------------------------------------


def planted(cases: Sequence[Case]) -> dict[str, int]:
    """Counts the faults that were planted in networks, and what certificates find of them."""
    faults = [case for case in cases if case.fault is not None]
    right = [case for case in cases if case.fault is None]
    unseen = [case for case in faults if not case.found]
    small = ("weight by 1e-05", "weight by 1e-06")
    return {
        "networks": len({case.network for case in cases}),
        "conversions": len(right),
        "right": sum(not case.found for case in right),
        "all": len(faults),
        "found": len(faults) - len(unseen),
        "left": len(unseen),
        "small": sum(str(case.fault).startswith(small) for case in unseen),
        "unmeasured": sum(case.effect is None for case in unseen),
        "loose": sum(not case.allclose[1] for case in faults),
    }


_LIMITS = [f"allclose at {limit:.0e}" for limit in CHOSEN]


def beyond(cases: Sequence[Case]) -> list[str]:
    """Counts the cases whose outputs are farther apart than each chosen tolerance."""
    return [f"{sum(not case.allclose[place] for case in cases)}" for place in range(len(CHOSEN))]


def grouped(cases: Sequence[Case], what: str) -> dict[str, list[Case]]:
    """Groups cases by one of their fields."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(getattr(case, what), []).append(case)
    return groups


def right_table(cases: Sequence[Case]) -> str:
    """Counts false alarms by conversion."""
    right = [case for case in cases if case.fault is None]
    rows = []
    for kind, own in {**grouped(right, "conversion"), "together": right}.items():
        alarms = sum(case.found for case in own)
        rows.append([kind, f"{len(own)}", f"{alarms}", *beyond(own)])
    return markdown_table(["conversion", "n", "false alarms of `certify`", *_LIMITS], rows)


def fault_table(cases: Sequence[Case]) -> str:
    """Counts by fault what was found, named, hidden and missed."""
    rows = []
    for fault, own in grouped([case for case in cases if case.fault is not None], "fault").items():
        found = [case for case in own if case.found]
        hidden = sum(case.hidden for case in own if not case.found)
        unseen = [f"{hidden}", f"{len(own) - len(found) - hidden}"]
        if own[0].effect is None:
            unseen = ["–", "–"]
        named = sum(case.named for case in found)
        counts = [f"{len(own)}", f"{len(found)}", f"{named}"]
        rows.append([fault, *counts, *unseen, *beyond(own)])
    return markdown_table(["fault", "n", "found", "named", "hidden", "missed", *_LIMITS], rows)


def largest_missed(cases: Sequence[Case]) -> float:
    """Returns the largest effect that was neither found nor hidden, as a share of what rounding explains."""
    missed = [case for case in cases if not case.found and not case.hidden]
    return max(case.effect / case.rounding for case in missed if case.effect is not None)


def read_cases(content: Mapping[str, Any]) -> list[Case]:
    """Reads the comparisons of a record."""
    return [Case(**row) for row in content["cases"]]


def measured(place: int, name: str, network: nn.Module, images: Tensor) -> dict[str, Any]:
    """Measures one network, with the seconds of processor time."""
    before = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        cases = [asdict(case) for case in measure(place, name, network, images, Path(folder))]
    seconds = time.process_time() - before
    print(f"{name}: {len(cases)} comparisons, {seconds:.0f} s", flush=True)
    return {"seconds": seconds, "cases": cases}


def main() -> None:
    """Measures all networks and writes the results."""
    work = new_parser(__doc__, "--work").parse_args().work
    warnings.simplefilter("ignore")  # of exporters
    logging.disable(logging.WARNING)
    rows, seconds = [], 0.0
    for place, name, network, images in networks():
        result = kept(work / f"{name}.json", partial(measured, place, name, network, images))
        seconds += result["seconds"]
        rows += result["cases"]
    setting = environment(__file__, *RUNTIMES)
    publish(__file__, {**setting, "seconds": seconds, "cases": rows})


if __name__ == "__main__":
    main()
