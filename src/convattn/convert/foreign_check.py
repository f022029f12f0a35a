"""Any conversion: a network of torch against another module, a file of a runtime or a function."""

import copy
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from convattn.budget import rounded_differently
from convattn.convert.certificate import CLOSE, IN_WORDS, VerdictRecord, require_share
from convattn.convert.network_check import FEW, compare_layers, compare_networks
from convattn.convert.network_runs import (
    Arguments,
    Images,
    copy_network,
    layer_outputs,
    output_of,
    parts,
    read_arguments,
)
from convattn.convert.runtimes import Load, Options, open_file
from convattn.convert.surgery import require_network
from convattn.convert.taps import OneAfterAnother
from convattn.errors import ArgumentError, must_be_a
from convattn.files import AnyPath
from convattn.structure import dtypes_in_words, full_name
from convattn.wording import counted, first_few

_Z = 1.9599639845400536
"""Standard deviations on each side of the mean within which a normal variable is in 95 % of cases."""


@dataclass(frozen=True)
class AgreementCertificate(VerdictRecord):
    """Whether a second network computes the same as a network of torch, measured on some images.

    The verdict is "exact" if all outputs, and all layers that could be compared, are within the rounding of the
    reference, labels and other values are equal, nothing is hidden, and the other is not quantised; "close" if the
    largest difference is within `tolerance` and no decision changed; "failed" if outputs are missing, of other shapes
    or not finite; and "different" otherwise.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 7)).eval()
        >>> certificate = certify(net, net, torch.rand(9, 3, 5, 5))
        >>> certificate.verdict, certificate.decisions, certificate.changed
        ('exact', 9, 0)
    """

    reference: str  # Class of the network of torch
    other: str  # What it was compared with, in words
    dtype: str  # Dtypes of the reference's parameters
    quantised: bool  # Whether the other is seen to compute with few bits
    images: str  # What both ran on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    # Dtype in which the reference computed what the other was compared with
    compared_with: str
    # How far the output that is nearest to its limit is from that
    measured_error: float
    rounding: float  # How far rounding explains there
    largest: float  # Largest absolute value of the reference in its channel
    # Largest difference that is called close, as a share of the largest value
    tolerance: float | None
    # Number of decisions; None unless the first output is one row of scores per image
    decisions: int | None
    changed: int | None  # How many the other takes otherwise, ties apart
    ties: int | None  # How many further ones differ where rounding can swap the two scores
    # 95 % interval (Wilson) of the share of decisions that agree
    interval: tuple[float, float] | None
    layers: int  # How many layers could be compared, by their names
    # The first of them that leaves its tolerance; None if none does, like the next two
    first: str | None
    first_error: float | None  # Its largest difference
    first_rounding: float | None  # Largest difference that rounding explains there
    not_covered: tuple[str, ...] = ()  # What the certificate says nothing about

    def summary(self) -> str:
        """Returns the certificate in short plain sentences."""
        other = self.other
        reference = self.reference
        if other == reference:
            other, reference = f"The other {other}", "the first"
        meaning = IN_WORDS[self.verdict].format(reference)
        lines = [f"certify: {self.verdict}", f"  {other} {meaning}."]
        shows = self.measured_error or self.largest  # or there were no numbers
        if shows and math.isfinite(self.largest):  # outputs of other shapes have no difference
            error = f"{self.measured_error:.3g} of {self.largest:.3g}"
            lines.append(f"  The output nearest to its limit is off by {error}, on {self.images}.")
            lines.append(f"  Rounding explains {self.rounding:.3g}, against {self.compared_with}.")
            lines.append(f"  The reference computed {self.precision}.")
        if self.quantised:
            lines.append("  It is quantised, so nothing is called exact.")
        lines += self._lines_on_decisions()
        if self.first is not None:
            error = (
                f"off by {self.first_error:.3g}, where rounding explains {self.first_rounding:.3g}"
            )
            lines.append(f"  The first layer outside its tolerance is {self.first}: {error}.")
        elif self.layers:
            compared = f"{counted(self.layers, 'layer')} could be compared, on at most {FEW} images"
            lines.append(f"  {compared}; none is outside its tolerance.")
        lines += [f"  Not covered: {item}." for item in first_few(self.not_covered)]
        return "\n".join(lines)

    def _lines_on_decisions(self) -> list[str]:
        if not self.decisions or self.changed is None or self.interval is None:
            return []
        agree = f"{self.decisions - self.changed} of {self.decisions} decisions agree"
        if self.ties:
            agree += f", {self.ties} of them as ties within rounding"
        low, high = self.interval
        return [f"  {agree}: {low:.1%} to {high:.1%} (95 % interval)."]


def certify(
    reference: nn.Module,
    other: nn.Module | AnyPath | Callable[..., Any],
    images: Images | None = None,
    *,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    options: Options = None,
    tolerance: float | None = CLOSE,
) -> AgreementCertificate:
    """Says whether a second network computes the same as a network of torch, and which layer is the first to differ.

    The tolerance is derived: the reference runs in float64, and in its own dtype with other last digits of images and
    weights and in another order of summation; the other may be at least twice as far from float64 as the farthest of
    these, and more where few numbers come out. Layers whose names can be matched may be twice as far as that: a
    conversion that merges layers sums in a new order.

    Args:
        reference: The network of torch; it is not changed, and runs in evaluation mode.
        other: Another module, compiled, quantised or in half precision, too; the path of an ONNX file or of an OpenVINO
            model (.xml); or a function from arrays of numpy to arrays.
        images: Images, or a tuple or mapping of arguments. None draws an image, and then nothing is called close.
        runtime: What runs a file. None takes ONNX Runtime for .onnx and OpenVINO for .xml.
        options: For ONNX Runtime's `InferenceSession` or OpenVINO's `compile_model`. None computes on the CPU, and with
            OpenVINO in float32; its own choice, {}, may be bfloat16.
        tolerance: Largest difference to call close, as a share in (0, 1) of its channel's largest output. None calls
            none so.

    Returns:
        The certificate.

    Raises:
        ArgumentError: An argument is of a wrong kind, the images do not fit the reference, or nothing can be compared.
        ConversionError: The other cannot be loaded, or does not run on the images.
        MissingDependencyError: The runtime is not installed.
        UnsupportedModelError: A network cannot be copied.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 7)).eval()
        >>> certify(net, lambda x: net(torch.from_numpy(x)).detach().numpy(), torch.rand(9, 3, 5, 5)).verdict
        'exact'
    """
    require_network("reference", reference)
    require_share("tolerance", tolerance)
    arguments = read_arguments(reference, images)
    adapter = _open(other, runtime, options)
    source = copy_network(reference).eval()
    rounded = [rounded_differently(source, seed) for seed in range(2)]
    rounded.append(_summed_one_after_another(source))
    comparison = compare_networks(
        source,
        adapter,
        arguments,
        [],
        to_conv=False,
        rounded=rounded,
        may_be_flat=not isinstance(adapter.network, nn.Module),
    )
    not_covered = ["other images than these", *comparison.not_covered]
    layers = 0
    first = None
    apart = comparison.nearest_to_rounding
    try:
        layers, first, apart = compare_layers(
            source, rounded, comparison.arguments, adapter.layer_outputs
        )
    except Exception as error:  # noqa: BLE001 - a runtime may refuse to show what is inside
        why = f"{type(error).__name__}: {error}"
        not_covered.append(f"single layers, which cannot be watched ({why})")
    if not layers and comparison.layers is not None:
        raise ArgumentError(
            "images must lead to something to compare: outputs of the reference say nothing on them, and no layer of"
            " the other has the name of one of its"
        )
    if not layers:
        not_covered.append("where a difference begins: no layer could be matched by its name")
    decisions = changed = ties = interval = None
    if comparison.predictions is not None:
        decisions, changed, ties = comparison.predictions
        changed -= ties
        interval = _wilson(decisions - changed, decisions) if decisions else None
    if images is None:
        tolerance = None
    may_be_exact = not (changed or adapter.quantised or first)
    verdict = comparison.judge(
        exact=may_be_exact, promised=False, changed=changed, tolerance=tolerance
    )
    judged = comparison.nearest_to_rounding if verdict == "exact" else comparison.farthest
    return AgreementCertificate(
        verdict=verdict,
        reference=type(reference).__name__,
        other=adapter.words,
        dtype=dtypes_in_words(reference),
        quantised=adapter.quantised,
        compared_with=comparison.reference,
        tolerance=tolerance,
        decisions=decisions,
        changed=changed,
        ties=ties,
        interval=interval,
        layers=layers,
        first=first,
        first_error=apart.error if first else None,
        first_rounding=apart.rounding if first else None,
        not_covered=tuple(not_covered),
        **comparison.measured(judged),
    )


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a share."""
    share = successes / trials
    whole = 1 + _Z**2 / trials
    centre = share + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(share * (1 - share) / trials + (_Z / trials / 2) ** 2)
    return max(0.0, (centre - spread) / whole), min(1.0, (centre + spread) / whole)


class _Adapter(nn.Module):
    """Adapts a network, a file or a function to a module of torch."""

    def __init__(
        self,
        network: Any,
        words: str = "",
        *,
        dtype: torch.dtype | None = None,
        quantised: bool = False,
        load: Load | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.words = words  # What it is
        self.dtype = dtype  # In which images are given to it; None leaves them
        self.quantised = quantised  # Whether it computes with few bits
        self.load = load  # Loads the file again, with the outputs of layers

    def forward(self, *positional: Any, **named: Any) -> Any:
        positional, named = tree_map_only(Tensor, self._prepare, (positional, named))
        return self.network(*positional, **named)

    def _prepare(self, x: Tensor) -> Any:
        if self.dtype is not None and x.is_floating_point():
            x = x.to(self.dtype)
        return x if isinstance(self.network, nn.Module) else x.numpy(force=True)

    def layer_outputs(self, images: Arguments, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns the outputs of the network's layers by name, of the `names` if it is a file."""
        if isinstance(self.network, nn.Module):
            return layer_outputs(self.network, images, self.dtype)[0]
        if self.load is None:
            return {}
        once = []  # innermost layers that run once
        for name in names:
            is_inner = not any(other.startswith(f"{name}.") for other in names)
            if is_inner and f"{name}#2" not in names:
                once.append(name)
        session = self.load(once)
        results = dict(parts(output_of(_Adapter(session), images)))
        return {name: results[f"[{place}]"] for name, place in session.layers.items()}


def _summed_one_after_another(source: nn.Module) -> nn.Module:
    """Copies a network so that it sums channels in another order."""
    copied = copy.deepcopy(source)
    forward = copied.forward

    def summed(*positional: Any, **named: Any) -> Any:
        with OneAfterAnother():
            return forward(*positional, **named)

    copied.forward = summed
    return copied


def _open(other: Any, runtime: str | None, options: Options) -> _Adapter:
    """Finds out what the other is, and how it runs."""
    if isinstance(other, str | os.PathLike):
        load, session = open_file(Path(other), runtime, options)
        words = session.words
        if session.fixed is not None:
            words += f" with batches of {session.fixed}"
        return _Adapter(session, words, quantised=session.quantised, load=load)
    if runtime is not None or options is not None or not callable(other):
        expectation = "a module, a function or, with a runtime or options, a file"
        raise ArgumentError(must_be_a("other", expectation, other))
    if not isinstance(other, nn.Module):
        return _Adapter(other, getattr(other, "__qualname__", type(other).__name__))
    network = copy_network(other)
    with suppress(NotImplementedError):  # a program of torch.export has no modes
        network.eval()
    held = [*network.parameters(), *network.buffers()]
    dtypes = {x.dtype for x in held if x.is_floating_point()}
    kinds = [full_name(type(one)) for one in (*network.modules(), *held)]
    quantised = any(".quantized." in kind or kind.startswith("torchao.") for kind in kinds)
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return _Adapter(network, type(other).__name__, dtype=dtype, quantised=quantised)
