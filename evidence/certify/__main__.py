"""What `certify` finds: faults planted in 60 networks, and right conversions of the same networks.

Each network gets the same faults, and each damaged network is then converted in a right way: another memory layout,
batch normalisation merged into convolutions, or attention. The network itself is converted in that way, too, and is
exported for ONNX Runtime and OpenVINO. Beside every verdict stands what a comparison of the outputs with a chosen
tolerance says. Writes certify.json and the page certify.md:

    python -m evidence.certify --work WORK
"""

import argparse
import ast
import copy
import json
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from convattn import certify, network_to_attention
from convattn.convert.agreement import AgreementCertificate
from convattn.convert.surgery import layer_outputs, read_arguments
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path

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
        self.width, self.qkv, self.proj = (
            width,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - as the class says
        parts = (
            self.qkv(x)
            .reshape(x.shape[0], x.shape[1], 3, 2, self.width // 2)
            .permute(2, 0, 3, 1, 4)
        )
        q, k, v = parts[0], parts[1], parts[2]
        mixed = (q @ k.transpose(-2, -1) / (self.width // 2) ** 0.5).softmax(-1) @ v
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
    width, parts = draw.choice([8, 12, 16]), []
    parts += [
        nn.Conv2d(3, width, 3, padding=1, bias=draw.random() < 0.5),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    for _ in range(draw.randint(2, 5)):
        act = draw.choice([nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish])()
        size, groups = draw.choice([1, 3, 3, 5]), draw.choice([1, 1, 2, width])
        conv = nn.Conv2d(
            width, width, size, padding=size // 2, groups=groups, bias=draw.random() < 0.5
        )
        norm = draw.choice(
            [nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.GroupNorm(2, width), nn.Identity()]
        )
        parts.append(
            Residual(conv, norm, act) if draw.random() < 0.5 else nn.Sequential(conv, norm, act)
        )
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
        if (
            isinstance(module, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm)
            and module.weight is not None
        ):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.5)
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return network.eval()


def networks() -> Iterator[tuple[int, str, nn.Module, Tensor]]:
    """Yields the 60 networks, each with its place in its family and its images."""
    for kind, make, count in (("cnn", random_cnn, RANDOM_CNNS), ("vit", random_vit, RANDOM_VITS)):
        for seed in range(count):
            torch.manual_seed(seed)
            yield (
                seed,
                f"{kind}-{seed}",
                filled(make(random.Random(seed))),
                torch.randn(IMAGES, 3, 24, 24),
            )
    for place, (name, (build, size)) in enumerate(BUILT.items()):
        torch.manual_seed(0)
        yield place, name, filled(build(num_classes=CLASSES)), torch.randn(IMAGES, 3, size, size)


# --- Right conversions ------------------------------------------------------------------------------------------------


def fold(network: nn.Module, images: Tensor) -> nn.Module:
    """Merges every batch normalisation that alone takes the output of a convolution into it."""
    takers = layer_outputs(network, read_arguments(network, images))[1]
    for name, after in takers.items():
        conv, norm = (
            network.get_submodule(name.partition("#")[0]),
            network.get_submodule(after[0].partition("#")[0]),
        )
        if (
            type(conv) is nn.Conv2d
            and type(norm) is nn.BatchNorm2d
            and "#" not in name + after[0]
            and len(after) == 1
        ):
            network.set_submodule(name, fuse_conv_bn_eval(conv, norm))
            network.set_submodule(after[0], nn.Identity())
    return network


def to_attention(network: nn.Module, images: Tensor) -> nn.Module:
    """Turns every convolution into attention."""
    return network_to_attention(network, images=images[:1])[0]


CONVERSIONS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "channels last": lambda network, _: network.to(memory_format=torch.channels_last),
    "folded": fold,
    "attention": to_attention,
}

# --- Faults -----------------------------------------------------------------------------------------------------------


def weighted(network: nn.Module) -> list[str]:
    """Lists the convolutions and linear maps."""
    return [
        name for name, part in network.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)
    ]


def change_weight(network: nn.Module, draw: random.Random, by: float) -> str:
    """Adds to one weight of a layer."""
    name = draw.choice(weighted(network))
    weight = network.get_submodule(name).weight.data.view(-1)  # type: ignore[union-attr, operator]
    weight[draw.randrange(len(weight))] += by
    return name


def swap_axes(network: nn.Module, draw: random.Random) -> str | None:
    """Swaps two axes of a kernel, or of a square matrix."""
    names = [
        n for n in weighted(network) if len({*network.get_submodule(n).weight.shape[-2:]}) == 1
    ]  # type: ignore[union-attr, arg-type]
    names = [n for n in names if network.get_submodule(n).weight.shape[-1] > 1]  # type: ignore[union-attr, index]
    if not names:
        return None
    name = draw.choice(names)
    layer = network.get_submodule(name)
    layer.weight.data = layer.weight.data.mT.contiguous()  # type: ignore[union-attr]
    return name


def pad_otherwise(network: nn.Module, draw: random.Random) -> str | None:
    """Repeats border pixels where zeros belong."""
    named = {
        n: m
        for n, m in network.named_modules()
        if type(m) is nn.Conv2d and m.padding not in (0, (0, 0))
    }
    if not named:
        return None
    name = draw.choice([*named])
    old = named[name]
    sizes = (
        old.in_channels,
        old.out_channels,
        old.kernel_size,
        old.stride,
        old.padding,
        old.dilation,
        old.groups,
    )
    new = nn.Conv2d(*sizes, bias=old.bias is not None, padding_mode="replicate")  # type: ignore[arg-type]
    new.load_state_dict(old.state_dict())
    network.set_submodule(name, new.eval())
    return name


def drop_bias(network: nn.Module, draw: random.Random) -> str | None:
    """Sets the bias of a layer to zero."""
    named = {
        n: m for n, m in network.named_modules() if isinstance(getattr(m, "bias", None), Tensor)
    }
    name = draw.choice([n for n, m in named.items() if m.bias.abs().max() > 0])  # type: ignore[union-attr, operator]
    named[name].bias.data.zero_()  # type: ignore[union-attr, operator]
    return name


def halve(network: nn.Module, draw: random.Random) -> str:
    """Rounds the weights of a layer to float16."""
    name = draw.choice(weighted(network))
    layer = network.get_submodule(name)
    layer.weight.data = layer.weight.data.half().float()  # type: ignore[union-attr, operator]
    return name


FAULTS: dict[str, Callable[[nn.Module, random.Random], str | None]] = {
    **{
        f"weight by {by:.0e}": (lambda network, draw, by=by: change_weight(network, draw, by))
        for by in CHANGES
    },
    "swapped axes": swap_axes,
    "wrong padding": pad_otherwise,
    "dropped bias": drop_bias,
    "half precision": halve,
}

IN_FILES = {f"weight by {by:.0e}, in the file": by for by in (1e-3, 1e-5)}


def damage_file(
    source: Path, target: Path, network: nn.Module, draw: random.Random, by: float
) -> str | None:
    """Adds to one weight of an ONNX file; returns the layer of the node that takes it, None if no weight has a name.

    Where the exporter merged a normalisation into a convolution, the node is that of the normalisation.
    """
    model, names = onnx.load(source), {f"{name}.weight": name for name in weighted(network)}
    tensors = [one for one in model.graph.initializer if one.name in names]
    if not tensors:
        return None
    chosen = draw.choice(tensors)
    values = np.array(onnx.numpy_helper.to_array(chosen))
    values.reshape(-1)[draw.randrange(values.size)] += by
    chosen.CopyFrom(onnx.numpy_helper.from_array(values, chosen.name))
    onnx.save(model, target)
    node = next(one for one in model.graph.node if chosen.name in one.input)
    scopes = next(
        one.value for one in node.metadata_props if one.key == "pkg.torch.onnx.name_scopes"
    )
    return ast.literal_eval(scopes)[-2]


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
    effect: (
        float | None
    )  # Largest change of the outputs by the fault, in float64; None where it was not measured
    allclose: tuple[bool, ...]  # Whether outputs agree within each of the chosen tolerances

    @property
    def named(self) -> bool:
        """Whether the layer that is named is the damaged one."""
        return self.layer is not None and self.first == self.layer

    @property
    def hidden(self) -> bool:
        """Whether the fault changes no output by as much as the last digit of the largest."""
        return (
            self.effect is not None and self.effect <= torch.finfo(torch.float32).eps * self.largest
        )


def agree(plain: Tensor, other: Tensor) -> tuple[bool, ...]:
    """Compares with each chosen tolerance, as `allclose` does."""
    return tuple(
        bool(((plain - other).abs() <= limit + limit * plain.abs()).all()) for limit in CHOSEN
    )


def case_of(certificate: AgreementCertificate, **fields: Any) -> Case:
    """Shortens a certificate."""
    same = ("verdict", "first", "measured_error", "rounding", "largest")
    return Case(**fields, **{name: getattr(certificate, name) for name in same})


@torch.no_grad()
def measure(
    place: int, name: str, network: nn.Module, images: Tensor, work: Path
) -> Iterator[Case]:
    """Yields every comparison of one network."""
    plain, kinds = network(images), [*CONVERSIONS]
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        kinds.remove("folded")
    kind = kinds[place % len(kinds)]
    high = copy.deepcopy(network).double()(images.double())
    for fault, plant in (("", None), *FAULTS.items()):
        damaged = copy.deepcopy(network)
        layer = plant(damaged, random.Random(f"{name} {fault}")) if plant else None
        if plant and layer is None:
            continue
        effect = (
            (copy.deepcopy(damaged).double()(images.double()) - high).abs().max().item()
            if plant
            else None
        )
        other = CONVERSIONS[kind](damaged, images)
        certificate = certify(network, other, images)
        fields = {
            "network": name,
            "conversion": kind,
            "fault": fault or None,
            "layer": layer,
            "effect": effect,
        }
        yield case_of(certificate, **fields, allclose=agree(plain, other(images)))
    path, wrong = work / "network.onnx", work / "wrong.onnx"
    torch.onnx.export(network, (images,), path, dynamo=True, verbose=False, external_data=False)
    for runtime in ("onnxruntime", "openvino"):
        certificate = certify(network, path, images, runtime=runtime)
        fields = {
            "network": name,
            "conversion": runtime,
            "fault": None,
            "layer": None,
            "effect": None,
        }
        yield case_of(
            certificate, **fields, allclose=agree(plain, in_runtime(runtime, path, images))
        )
    for fault, by in IN_FILES.items():
        layer = damage_file(path, wrong, network, random.Random(f"{name} {fault}"), by)
        if layer is not None:
            certificate = certify(network, wrong, images)
            fields = {
                "network": name,
                "conversion": "onnxruntime",
                "fault": fault,
                "layer": layer,
                "effect": None,
            }
            yield case_of(
                certificate,
                **fields,
                allclose=agree(plain, in_runtime("onnxruntime", wrong, images)),
            )


def in_runtime(runtime: str, path: Path, images: Tensor) -> Tensor:
    """Runs a file in a runtime, in float32."""
    if runtime == "openvino":
        compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return torch.from_numpy(compiled([images.numpy()])[0].copy())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


# --- The page ---------------------------------------------------------------------------------------------------------

PAGE = """\
# Faults that a certificate finds

Does [`certify`](../how-to/certify.md) find what a conversion broke, and does it leave right conversions alone? {names}
networks got the same faults. {answer}

## Right conversions

{right}

A false alarm is a right conversion that is not called exact, or whose outputs are farther apart than the tolerance.
{alarms}

## Faults

{faults}

- **Found**: not called exact. **Named**: the layer that is named is the damaged one, of those found.
- **Hidden**: not found, and in float64 no output changes by more than the last digit of the largest output in float32.
  A weight that meets only zeros on these images is an example. **Missed**: not found, and larger than that. In files
  neither was measured.
- **allclose**: the outputs differ by more than t + t · |output| somewhere, t = 1e-3 or 1e-5.

{missed}

## How it was measured

    {command}

{cnns} random convolutional networks and {vits} random transformers on images of 24 × 24, and {built} networks of
torchvision and timm with random weights on 48 × 48 or 64 × 64. Each sees {images} images of standard normal numbers.
Layer, weight and position are drawn for each network and fault. A damaged network is compared after a right conversion:
{kinds} in turn. Faults in files are made in the weights of the ONNX file. A fault that a network has no place for (a
transformer of this kind pads nothing) is left out.

{hardware[processor]}, {hardware[threads]} thread(s), torch {versions[torch]}, ONNX Runtime
{versions[onnxruntime]}, OpenVINO {versions[openvino]}, revision {revision};
{seconds:.0f} seconds of processor time. All comparisons are in [certify.json](../../evidence/certify/certify.json).

Not covered: trained weights, other sizes of image, float16 and bfloat16, faults in several layers at once.
"""


def rates(cases: Sequence[Case]) -> list[str]:
    """Counts the cases in which an alarm was raised: by the certificate, and by each chosen tolerance."""
    alarms = [sum(case.verdict != "exact" for case in cases)]
    alarms += [sum(not case.allclose[i] for case in cases) for i in range(len(CHOSEN))]
    return [str(count) for count in alarms]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def page(cases: Sequence[Case], setting: dict[str, Any]) -> str:
    """Words the result; every number comes from the cases."""
    right = [case for case in cases if case.fault is None]
    planted = [case for case in cases if case.fault is not None]
    limits = [f"allclose at {limit:.0e}" for limit in CHOSEN]
    kinds = dict.fromkeys(case.conversion for case in right)
    by_kind = [(kind, [case for case in right if case.conversion == kind]) for kind in kinds]
    rows = [[kind, str(len(some)), *rates(some)] for kind, some in [*by_kind, ("together", right)]]
    of_fault = []
    for fault in dict.fromkeys(case.fault for case in planted):
        some = [case for case in planted if case.fault == fault]
        found = [case for case in some if case.verdict != "exact"]
        hidden = sum(case.verdict == "exact" and case.hidden for case in some)
        known = (
            [str(hidden), str(len(some) - len(found) - hidden)]
            if some[0].effect is not None
            else ["–", "–"]
        )
        named = str(sum(case.named for case in found))
        of_fault.append(
            [str(fault), str(len(some)), str(len(found)), named, *known, *rates(some)[1:]]
        )
    wrong = [case for case in right if case.verdict != "exact"]
    alarms = "\n".join(
        f"- {case.network}, {case.conversion}: off by {case.measured_error:.2g} of {case.largest:.2g}, where rounding"
        f" explains {case.rounding:.2g}; first layer {case.first or 'none'}."
        for case in wrong
    )
    missed = [
        case
        for case in planted
        if case.verdict == "exact" and case.effect is not None and not case.hidden
    ]
    largest = max((case.effect / case.rounding for case in missed if case.effect), default=0.0)
    found = sum(case.verdict != "exact" for case in planted)
    return PAGE.format(
        names=len({case.network for case in cases}),
        answer=f"Of {len(planted)} faults {found} were found, and {len(right) - len(wrong)} of {len(right)} right"
        " conversions are exact.",
        right=table(["conversion", "n", "false alarms of `certify`", *limits], rows),
        alarms=alarms or "`certify` raised none.",
        faults=table(["fault", "n", "found", "named", "hidden", "missed", *limits], of_fault),
        missed=f"What was missed changes the outputs by at most {largest:.2g} of what rounding explains."
        if missed
        else "Nothing was missed that is not hidden.",
        cnns=RANDOM_CNNS,
        vits=RANDOM_VITS,
        built=len(BUILT),
        images=IMAGES,
        kinds=", ".join(CONVERSIONS),
        **setting,
    )


def main() -> None:
    """Measures all networks and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for what is measured; what is there is kept",
    )
    parser.add_argument(
        "--reverse", action="store_true", help="begin at the end, beside a process that does not"
    )
    arguments = parser.parse_args()
    folder, work = arguments.output, arguments.work
    for made in (folder, work):
        made.mkdir(parents=True, exist_ok=True)  # before anything is measured
    warnings.simplefilter("ignore")  # of exporters
    logging.disable(logging.WARNING)
    every = [*networks()]
    for place, name, network, images in reversed(every) if arguments.reverse else every:
        if not (work / f"{name}.json").exists():
            before = time.process_time()
            with tempfile.TemporaryDirectory() as files:
                cases = [
                    asdict(case) for case in measure(place, name, network, images, Path(files))
                ]
            seconds = time.process_time() - before
            write_atomically(
                work / f"{name}.json", json.dumps({"seconds": seconds, "cases": cases})
            )
            print(f"{name}: {len(cases)} comparisons, {seconds:.0f} s", flush=True)
    measured = [
        json.loads((work / f"{name}.json").read_text(encoding="utf-8")) for _, name, *_ in every
    ]
    cases = [
        Case(**{**case, "allclose": tuple(case["allclose"])})
        for one in measured
        for case in one["cases"]
    ]
    setting = {
        "command": f"python -m evidence.certify --work WORK --output {portable_path(folder)}",
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", "onnxruntime", "openvino")),
        "revision": find_revision(),
        "seconds": sum(one["seconds"] for one in measured),
    }
    content = {**setting, "cases": [asdict(case) for case in cases]}
    write_atomically(folder / "certify.json", json.dumps(content, indent=1) + "\n")
    write_atomically(folder / "certify.md", page(cases, setting))


if __name__ == "__main__":
    main()
