"""Any conversion: a network of torch against another module, a file of a runtime or a function."""

import ast
import copy
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from convattn.convert.certificate import CLOSE, Verdict, VerdictRecord, largest, require_share
from convattn.convert.comparison import compare_networks
from convattn.convert.surgery import (
    Arguments,
    copy_network,
    full_name,
    layer_outputs,
    output_of,
    parts,
    read_arguments,
)
from convattn.convert.taps import OneAfterAnother
from convattn.errors import ArgumentError, ConversionError, must_be_a, optional_module
from convattn.functional.reference import rounded_otherwise
from convattn.wording import counted

_QUANTISED = re.compile("Quantize|QLinear|Integer$|NBits$")
"""Operations of ONNX and OpenVINO on few bits."""

_FARTHER = 4
"""How many times as far from float64 as the reference's own roundings a layer may be. A folded normalisation puts a
large bias first: with AVX2 the sum is then 2.5 times as far (median of 30 layers; 0.99 times with AVX-512)."""


@dataclass(frozen=True)
class AgreementCertificate(VerdictRecord):
    """Whether a second network computes the same as a network of torch, measured on some images.

    The verdict is "exact" if all outputs, and all layers that could be compared, are within the rounding of the
    reference, and the other is not quantised; "close" if the largest difference is within `tolerance` and no decision
    changed; "failed" if outputs are missing, of other shapes or not finite; and "different" otherwise.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 7)).eval()
        >>> certificate = certify(net, net, torch.rand(9, 3, 5, 5))
        >>> certificate.verdict, certificate.decisions, certificate.changed
        ('exact', 9, 0)
    """

    schema_version: ClassVar[int] = 1

    reference: str  # Class of the network of torch
    other: str  # What it was compared with, in words
    dtype: str  # Dtypes of the reference's parameters
    quantised: bool  # Whether the other is seen to compute with few bits
    images: str  # What both ran on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    compared_with: str  # Dtype in which the reference computed what the other was compared with
    measured_error: (
        float  # Largest difference to that, at the output that comes closest to its tolerance
    )
    rounding: float  # Largest difference that rounding explains there, by `docs/explanation/error-budget.md`
    largest: float  # Largest absolute value of the reference there
    tolerance: (
        float | None
    )  # Largest difference that is called close, as a share of the largest value
    decisions: (
        int | None
    )  # Number of decisions; None unless the first output is one row of scores per image
    changed: int | None  # How many the other takes otherwise, ties apart
    ties: int | None  # How many further ones differ where rounding can swap the two scores
    interval: (
        tuple[float, float] | None
    )  # 95 % interval (Wilson) of the share of decisions that agree
    layers: int  # How many layers could be compared, by their names
    first: (
        str | None
    )  # The first of them that leaves its tolerance; None if none does, like the next two
    first_error: float | None  # Its largest difference
    first_rounding: float | None  # Largest difference that rounding explains there
    not_covered: tuple[str, ...] = ()  # What the certificate says nothing about

    def summary(self) -> str:
        """Returns the certificate in short plain sentences."""
        says = {
            "exact": "computes what {} computes, up to rounding",
            "close": "is near {} and decides alike, but does not compute the same",
            "different": "does not compute what {} computes",
            "failed": "does not give what {} gives",
        }
        lines = [
            f"certify: {self.verdict}",
            f"  {self.other} {says[self.verdict].format(self.reference)}.",
        ]
        if math.isfinite(self.largest):  # outputs of other shapes have no difference
            lines += [
                f"  The largest difference is {self.measured_error:.3g} of {self.largest:.3g}, on {self.images}.",
                f"  Rounding explains {self.rounding:.3g}, against {self.compared_with}.",
            ]
        if self.quantised:
            lines.append("  It is quantised, so nothing is called exact.")
        if self.decisions and self.changed is not None and self.interval is not None:
            same = f"{self.decisions - self.changed} of {counted(self.decisions, 'decision')} agree"
            ties = f", {self.ties} of them as ties within rounding" if self.ties else ""
            lines.append(
                f"  {same}{ties}: {self.interval[0]:.1%} to {self.interval[1]:.1%} (95 % interval)."
            )
        if self.first is not None:
            numbers = (
                f"off by {self.first_error:.3g}, where rounding explains {self.first_rounding:.3g}"
            )
            lines.append(f"  The first layer outside its tolerance is {self.first}: {numbers}.")
        elif self.layers:
            found = counted(self.layers, "layer")
            lines.append(
                f"  {found} could be compared, on the first images; none is outside its tolerance."
            )
        return "\n".join([*lines, *(f"  Not covered: {item}." for item in self.not_covered)])


def certify(
    reference: nn.Module,
    other: nn.Module | str | os.PathLike[str] | Callable[..., Any],
    images: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
    *,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    options: Mapping[str, Any] | None = None,
    tolerance: float | None = CLOSE,
) -> AgreementCertificate:
    """Says whether a second network computes the same as a network of torch, and which layer is the first to differ.

    The tolerance is derived: the reference runs in float64, and in its own dtype with other last digits of images and
    weights and in another order of summation; the other may be twice as far from float64 as the farthest of these.
    Layers whose names can be matched may be four times as far: a conversion that merges layers sums in a new order.

    Args:
        reference: The network of torch; it is not changed, and runs in evaluation mode.
        other: Another module, compiled, quantised or in half precision, too; the path of an ONNX file or of an OpenVINO
            model (.xml); or a function from arrays of numpy to arrays.
        images: Images, or a tuple or mapping of arguments. None draws an image, and then nothing is called close.
        runtime: What runs a file. None takes ONNX Runtime for .onnx and OpenVINO for .xml.
        options: For ONNX Runtime's `InferenceSession` or OpenVINO's `compile_model`. None computes on the CPU, and with
            OpenVINO in float32; its own choice, {}, may be bfloat16.
        tolerance: Largest difference to call close, as a share in (0, 1) of the largest output. None calls none so.

    Returns:
        The certificate.

    Raises:
        ArgumentError: An argument is of a wrong kind, or the images do not fit the reference.
        ConversionError: The other cannot be loaded, or does not run on the images.
        MissingDependencyError: The runtime is not installed.
        UnsupportedModelError: A network cannot be copied.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 7)).eval()
        >>> certify(net, lambda x: net(torch.from_numpy(x)).detach().numpy(), torch.rand(9, 3, 5, 5)).verdict
        'exact'
    """
    if not isinstance(reference, nn.Module):
        raise ArgumentError(must_be_a("reference", "an nn.Module", reference))
    require_share("tolerance", tolerance)
    given, made = read_arguments(reference, images), _open(other, runtime, options)
    source, order = _Listed(copy_network(reference).eval()), OneAfterAnother()
    rounded: list[Any] = [
        *(rounded_otherwise(source, seed) for seed in range(2)),
        copy.deepcopy(source),
    ]
    rounded[-1].network.register_forward_pre_hook(lambda *_: order.__enter__() and None)
    rounded[-1].network.register_forward_hook(
        lambda *_: order.__exit__(None, None, None), always_call=True
    )
    compared = compare_networks(source, made, given, {}, to_conv=False, rounded=rounded)
    worst, notes = compared.worst(exact=True), ["other images than these", *compared.not_covered]
    first, layers = None, 0
    try:
        first, layers = _first_outside(
            source.network, [one.network for one in rounded], made, given.batches(4)[0]
        )
    except Exception as error:  # noqa: BLE001 - a runtime may refuse to show what is inside
        notes.append(f"single layers, which cannot be watched ({type(error).__name__}: {error})")
    if not layers:
        notes.append("where a difference begins: no layer could be matched by its name")
    name, error, allowed = first or (None, None, None)
    kinds = dict.fromkeys(
        str(parameter.dtype).removeprefix("torch.") for parameter in reference.parameters()
    )
    total, ties = compared.top1_total, compared.top1_ties
    changed = (
        None if compared.top1_changed is None or ties is None else compared.top1_changed - ties
    )
    share, apart = max(one.relative for one in compared.outputs), changed or compared.differing
    verdict: Verdict = (
        "different" if math.isfinite(sum(one.error for one in compared.outputs)) else "failed"
    )
    if worst.share <= 1 and not (apart or made.quantised or first):
        verdict = "exact"
    elif tolerance is not None and images is not None and share <= tolerance and not apart:
        verdict = "close"
    return AgreementCertificate(
        verdict=verdict,
        reference=type(reference).__name__,
        other=made.words,
        dtype=", ".join(kinds),
        quantised=made.quantised,
        images=compared.images,
        shapes=compared.shapes,
        compared_with=compared.reference,
        measured_error=worst.error,
        rounding=worst.rounding,
        largest=worst.largest,
        tolerance=None if images is None else tolerance,
        decisions=total,
        changed=changed,
        ties=ties,
        interval=None if not total or changed is None else _wilson(total - changed, total),
        layers=layers,
        first=name,
        first_error=error,
        first_rounding=allowed,
        not_covered=tuple(notes),
    )


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a share."""
    z, share = NormalDist().inv_cdf(0.975), successes / trials
    centre, spread = (
        share + z * z / (2 * trials),
        z * math.sqrt(share * (1 - share) / trials + (z / trials / 2) ** 2),
    )
    return max(0.0, (centre - spread) / (1 + z * z / trials)), min(
        1.0, (centre + spread) / (1 + z * z / trials)
    )


class _Listed(nn.Module):
    """Runs a network or a function, and returns the tensors of its output in a list, wherever they stand in it."""

    def __init__(self, network: Any, words: str = "", dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.network, self.words, self.dtype, self.quantised = network, words, dtype, False
        self.reload: Callable[[Sequence[str]], _Session] | None = (
            None  # With the outputs of layers of these names
        )

    def forward(self, *given: Any, **named: Any) -> list[Tensor]:
        given, named = tree_map_only(Tensor, self._prepare, (given, named))
        every = [part for _, part in parts(self.network(*given, **named))]
        every = [
            torch.as_tensor(np.array(x)) if isinstance(x, np.ndarray | np.generic) else x
            for x in every
        ]
        return [x.dequantize() if x.is_quantized else x for x in every if isinstance(x, Tensor)]

    def _prepare(self, x: Tensor) -> Any:
        x = x.to(self.dtype) if self.dtype is not None and x.is_floating_point() else x
        return x if isinstance(self.network, nn.Module) else x.numpy(force=True)


def _first_outside(
    source: nn.Module, rounded: list[nn.Module], made: _Listed, given: Arguments
) -> tuple[Any, int]:
    """Returns the first layer outside its tolerance, with its error and its rounding, and how many were compared.

    A layer is passed over if all that take its output, or else the module that holds it, are within their tolerances.
    """
    high, takers = layer_outputs(copy.deepcopy(source).double(), given, torch.float64)
    values = (
        layer_outputs(made.network, given, made.dtype)[0]
        if isinstance(made.network, nn.Module)
        else {}
    )
    if made.reload is not None:
        inner = [
            k
            for k in high
            if f"{k}#2" not in high and not any(other.startswith(f"{k}.") for other in high)
        ]
        session = made.reload(inner)
        results = output_of(_Listed(session), given)
        values = {name: results[place] for name, place in session.layers.items()}
    high = {
        k: x
        for k, x in high.items()
        if k in values and values[k].shape == x.shape and x.isfinite().all()
    }
    rounding = dict.fromkeys(high, 0.0)
    moved = [given, *(given.rounded_differently(seed) for seed in range(3))]
    for network, images in [*((source, one) for one in moved), *((one, given) for one in rounded)]:
        for name, low in layer_outputs(network, images)[0].items():
            if name in high:
                spread = largest(low.double() - high[name]) + torch.finfo(low.dtype).eps * largest(
                    high[name]
                )
                rounding[name] = max(rounding[name], _FARTHER * spread)
    error = {name: largest(values[name].double() - x) for name, x in high.items()}
    for name in high:
        after = [
            error[one] <= rounding[one]
            for one in takers.get(name, [name.rpartition(".")[0]])
            if one in high
        ]
        if not (error[name] <= rounding[name] or (after and all(after))):
            return (name, error[name], rounding[name]), len(high)
    return None, len(high)


def _open(other: Any, runtime: str | None, options: Mapping[str, Any] | None) -> _Listed:
    """Finds out what the other is, and how it runs."""
    if not isinstance(other, str | os.PathLike):
        if runtime is not None or options is not None or not callable(other):
            raise ArgumentError(
                must_be_a(
                    "other", "a module, a function or, with a runtime or options, a file", other
                )
            )
        if not isinstance(other, nn.Module):
            return _Listed(other, getattr(other, "__qualname__", type(other).__name__))
        network = copy_network(other)
        with suppress(NotImplementedError):  # a program of torch.export has no modes
            network.eval()
        held = [*network.parameters(), *network.buffers()]
        kinds = {x.dtype for x in held if x.is_floating_point()}
        listed = _Listed(network, type(other).__name__, kinds.pop() if len(kinds) == 1 else None)
        names = [full_name(type(one)) for one in (*network.modules(), *held)]
        listed.quantised = any(
            ".quantized." in name or name.startswith("torchao.") for name in names
        )
        return listed
    path = Path(other)
    load = {
        "onnxruntime": _in_onnxruntime,
        "openvino": _in_openvino,
        ".onnx": _in_onnxruntime,
        ".xml": _in_openvino,
    }
    if not path.is_file() or (runtime or path.suffix) not in load:
        raise ArgumentError(
            f"other must be a file of the kind .onnx or .xml that exists, but is {str(path)!r}"
        )
    reload = partial(load[runtime or path.suffix], path, options)
    try:
        session = reload([])
    except ImportError:
        raise
    except Exception as error:  # a runtime may fail in any way
        raise ConversionError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    listed = _Listed(session, session.words)
    listed.quantised, listed.reload = session.quantised, reload
    return listed


@dataclass
class _Session:
    """A model that a runtime has loaded; called with arrays of numpy in order or by name, it returns arrays."""

    words: str
    quantised: bool
    inputs: dict[
        str, tuple[Any, Any]
    ]  # Dtype by name, and the length of the first axis; a number if that is fixed
    layers: dict[str, int]  # Places of the outputs of layers among the results
    compute: Callable[[dict[str, Any]], Any]  # From arrays by name to a sequence of arrays

    def __call__(self, *given: Any, **named: Any) -> list[Any]:
        values = named or dict(zip(self.inputs, given, strict=False))
        if set(values) != set(self.inputs) or len(values) != len(given) + len(named):
            found = ", ".join(named) or str(len(given))
            raise ArgumentError(
                f"images must be the inputs of the model ({', '.join(self.inputs)}), but are {found}"
            )
        arrays = {name: np.asarray(x, self.inputs[name][0]) for name, x in values.items()}
        count = max(len(x) for x in arrays.values() if x.ndim)
        size = next((size for _, size in self.inputs.values() if isinstance(size, int)), count)
        if size == count:
            return list(self.compute(arrays))
        every = []
        for start in range(0, count, size):  # the last image fills up the last run
            chosen = np.arange(start, start + size).clip(max=count - 1)
            every.append(
                [
                    y[: count - start]
                    for y in self.compute({name: x[chosen] for name, x in arrays.items()})
                ]
            )
        return [np.concatenate(several) for several in zip(*every, strict=True)]


def _in_onnxruntime(
    path: Path, options: Mapping[str, Any] | None, names: Sequence[str]
) -> _Session:
    ort = optional_module("onnxruntime", "onnxruntime", "export")
    source, quantised, values = _read_onnx(path, names)
    session = ort.InferenceSession(
        source, **({"providers": ["CPUExecutionProvider"]} if options is None else options)
    )
    kinds = {"tensor(float)": "float32", "tensor(double)": "float64"}
    inputs = {
        x.name: (kinds.get(x.type, x.type[7:-1]), (x.shape or [None])[0])
        for x in session.get_inputs()
    }
    outputs = [x.name for x in session.get_outputs()]
    layers = {layer: outputs.index(value) for layer, value in values.items()}
    words = f"{path.name} in ONNX Runtime {ort.__version__}"
    return _Session(words, quantised, inputs, layers, partial(session.run, None))


def _read_onnx(path: Path, names: Sequence[str]) -> tuple[str | bytes, bool, dict[str, str]]:
    """Returns what to load, whether it is quantised, and the name of the value that each of these layers gives.

    Torch's exporter writes the names of modules beside each node, the last node of a layer gives its value. These
    values become outputs.
    """
    try:
        onnx = optional_module("onnx", "onnx", "export")
    except ImportError:
        return str(path), False, {}
    model, values = onnx.load(str(path), load_external_data=bool(names)), dict[str, str]()
    for node in model.graph.node:
        scopes = [
            ast.literal_eval(one.value)
            for one in node.metadata_props
            if one.key.endswith("name_scopes")
        ]
        if scopes and scopes[0][-2:-1] and scopes[0][-2] in names:
            values[scopes[0][-2]] = node.output[0]
    present = [one.name for one in model.graph.output]
    model.graph.output.extend(
        onnx.ValueInfoProto(name=one) for one in {*values.values()} if one not in present
    )
    quantised = any(_QUANTISED.search(node.op_type) for node in model.graph.node)
    return model.SerializeToString() if names else str(path), quantised, values


def _in_openvino(path: Path, options: Mapping[str, Any] | None, names: Sequence[str]) -> _Session:
    ov = optional_module("openvino", "openvino", "export")
    source, _, values = (
        _read_onnx(path, names) if path.suffix == ".onnx" else (str(path), False, {})
    )
    core, found = ov.Core(), dict[str, Any]()
    model = core.read_model(source)
    operations = [
        one for one in model.get_ordered_ops() if one.get_type_name() not in ("Constant", "Result")
    ]
    for one in operations:
        layer = one.get_friendly_name().partition("/")[0].removeprefix("__module.")
        if layer in names and layer not in values:
            found[layer] = one.output(0)
    model.add_outputs([*found.values()])
    values |= {layer: output.get_any_name() for layer, output in found.items()}
    places = {name: place for place, one in enumerate(model.outputs) for name in one.get_names()}
    layers = {layer: places[value] for layer, value in values.items()}
    compiled = core.compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"} if options is None else {**options}
    )
    inputs = {}
    for one in compiled.inputs:
        first = [*one.get_partial_shape()][:1]
        size = first[0].get_length() if first and first[0].is_static else None
        inputs[one.get_any_name()] = one.get_element_type().to_dtype(), size
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    words = f"{path.name} in OpenVINO {ov.__version__.partition('-')[0]} ({precision})"
    quantised = any(_QUANTISED.search(one.get_type_name()) for one in operations)
    return _Session(words, quantised, inputs, layers, lambda given: compiled(given).to_tuple())
