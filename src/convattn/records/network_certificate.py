"""What the conversion of a whole network promises, layer by layer, and what was measured of it end to end."""

from dataclasses import dataclass
from typing import Any, ClassVar

from convattn.records.certificate import Judged, relative, remedies
from convattn.records.record import Record
from convattn.records.words import ITSELF, counted, some


@dataclass(frozen=True)
class LayerCertificate(Judged):
    """One converted layer of a network: what `Certificate` says of it, in short."""

    added: ClassVar[tuple[str, ...]] = ("largest",)

    name: str  # As in `named_modules`; the first name of a layer that has several
    aliases: tuple[str, ...]  # Its further names
    source: str  # The converted module, as `print` shows it
    result: str  # The module that replaces it, as `print` shows it
    heads: int  # Number of attention heads, of the source or of the result
    kernel_size: tuple[int, ...]  # Kernel of the convolution, of the source or of the result
    exact: bool  # Whether nothing is lost but rounding
    leak: float  # Bound on the attention outside a head's own pixel (towards a convolution, outside the window)
    bound_per_unit: float  # A-priori bound on the output error for inputs of absolute value ≤ 1, without rounding
    rounding_per_unit: float  # A-priori bound on what rounding adds to that
    rounding_at_zero: float  # The same for an input of zeros
    bound: float  # The a-priori bound for the random input on which the layer was measured
    measured_error: float  # Largest output difference to the source's function in float64 on that input
    rounding: float  # Largest difference that the dtype's rounding explains there
    largest: float | None  # Largest absolute value of the source's output there; None in files of schema version 2
    path: str | None  # "convolution", or the attention's path on the network's images; None if they did not reach it
    notes: tuple[str, ...] = ()  # What the result does not take over or does in another way, what was folded in

    def summary(self) -> str:
        """Returns the layer in one line of plain text."""
        kind = "" if self.exact else f"leak {self.leak:.3g}, "
        kernel = " x ".join(map(str, self.kernel_size))
        of = "" if self.largest is None else f" of {self.largest:.3g}"
        error = f"error {self.measured_error:.3g}{of}, bound {self.bound + self.rounding:.3g}"
        where = f"kernel {kernel}, {self.path or 'not reached'}"
        return f"{self.name or ITSELF}: {self.verdict}, {kind}{counted(self.heads, 'head')}, {where}, {error}"


@dataclass(frozen=True)
class LeftAlone(Record):
    """A layer that was not converted, although it may compute a convolution."""

    name: str  # Dotted name of the module, or of the module that calls a convolution as a function
    kind: str  # Its class
    reason: str  # Why it was left

    def summary(self) -> str:
        """Returns this in one line of plain text."""
        return f"{self.name or ITSELF} ({self.kind}): {self.reason}"


@dataclass(frozen=True)
class NetworkCertificate(Judged):
    """What the conversion of a whole network promises, and what was measured of it, in either direction.

    Each layer has its own bound for every input, as in `Certificate`. For the whole network there is a promise only if
    every layer is exact: then both networks compute the same function and differ by rounding alone. The rounding is
    measured on the images named, and not bounded for others. If layers leak, the numbers for the whole network are
    measurements on these images and not bounds.

    Attributes:
        verdict: "exact": every layer is exact and the networks agree within rounding, where they were compared.
            "close": the largest difference is within `tolerance` and no prediction changed, on images that were given.
            "different": neither. "failed": a layer broke its promise, or exact layers do not make the same network, or
            its outputs are of other shapes or not finite.
        direction: "network_to_attention" or "network_to_conv".
        source: Class of the network converted.
        result: Class of the network made.
        dtype: Dtypes of its parameters, for instance "float32".
        impl: Path requested of attention layers that were made; None towards convolutions.
        layers: The converted layers, in the order of their names in the network.
        left_alone: What was not converted.
        exact: Whether every converted layer is exact.
        images: What the whole networks were compared on, in words; None where nothing was.
        shapes: Shapes of the tensors that they were called with.
        reference: Dtype of the source with which the result is compared, for instance "float64"; None, like the next
            three, if the networks were not compared.
        measured_error: Largest difference to the reference over all outputs, at the output that comes closest to its
            budget.
        rounding: Largest difference that the dtype's rounding explains there, by the error budget of
            `docs/error-budget.md`.
        largest: Largest absolute value of the reference there.
        tolerance: Largest difference that is called close, as a share of `largest`; None where nothing is called close,
            because only random numbers were compared or no limit was stated.
        top1_total: Number of predictions, where the first output is one row of scores per image; otherwise None.
        top1_changed: How many of them have another largest score than before.
        accuracy_before: Share of the labels that the source predicts, in [0, 1]; None without labels.
        accuracy_after: The same of the network made.
        not_covered: What the certificate says nothing about.
        weights: SHA-256 of the weights of the network made; None in older files.
    """

    added: ClassVar[tuple[str, ...]] = ("tolerance",)
    later: ClassVar[tuple[str, ...]] = ("weights",)
    layer_kind: ClassVar[type[Judged]] = LayerCertificate

    direction: str
    source: str
    result: str
    dtype: str
    impl: str | None
    layers: tuple[LayerCertificate, ...]
    left_alone: tuple[LeftAlone, ...]
    exact: bool
    images: str | None
    shapes: tuple[tuple[int, ...], ...]
    reference: str | None
    measured_error: float | None
    rounding: float | None
    largest: float | None
    tolerance: float | None
    top1_total: int | None
    top1_changed: int | None
    accuracy_before: float | None
    accuracy_after: float | None
    not_covered: tuple[str, ...] = ()
    weights: str | None = None

    @classmethod
    def _upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Reads a file without verdict; what differed by more than its output did not pass then, and is different."""
        content = super()._upgraded(content)
        layers, error = content.get("layers"), content.get("measured_error")
        soft = content.get("verdict") == "failed" and content.get("exact") is False and isinstance(error, float)
        if (
            soft
            and isinstance(layers, list)
            and all(isinstance(layer, dict) and layer.get("verdict") != "failed" for layer in layers)
        ):
            content["verdict"] = "different"
        return content

    @property
    def difference(self) -> float | None:
        """Measured error as a share of the largest output; None if that is unknown or zero."""
        return relative(self.measured_error, self.largest)

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text: exact layers are counted, others have a line each."""
        sizes = [counted(len(self.layers), "layer"), counted(sum(layer.heads for layer in self.layers), "head")]
        lines = [
            f"{self.direction.replace('_', ' ')}: {self.verdict} ({', '.join([*self._apart(), *sizes, self.dtype])})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  paths           {self._paths()}",
        ]
        if self.measured_error is not None and self.rounding is not None and self.largest is not None:
            lines.append(f"  measured error  {self.measured_error:.3g} of {self.largest:.3g}, on {self.images}")
            lines.append(f"  rounding        {self.rounding:.3g}, against {self.reference}")
        if self.tolerance is not None and not self.exact:
            lines.append(f"  limit           {self.tolerance:.3g} of the largest output, for a result that is close")
        if self.top1_total is not None:
            lines.append(f"  top-1 changed   {self.top1_changed} of {self.top1_total}")
        if self.accuracy_before is not None and self.accuracy_after is not None:
            lines.append(f"  accuracy        {self.accuracy_before:.2%} before, {self.accuracy_after:.2%} after")
        if self.verdict in ("close", "different"):
            lines += remedies(self.direction)
        told = [layer for layer in self.layers if not (layer.exact and layer.verdict == "exact")]
        lines += [f"  layer           {layer.summary()}" for layer in told]
        for note in dict.fromkeys(note for layer in self.layers for note in layer.notes):
            lines.append(f"  note            {note} ({some([one.name for one in self.layers if note in one.notes])})")
        lines += [f"  left alone      {item.summary()}" for item in self.left_alone]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)

    def _apart(self) -> list[str]:
        """Words how far the networks are apart, where they are not the same."""
        if self.verdict == "exact":
            return []
        changed = [f"{self.top1_changed} of {self.top1_total} decisions changed"] if self.top1_total else []
        return [*([f"by {self.difference:.2g} of the largest output"] if self.difference else []), *changed]

    def _paths(self) -> str:
        paths = [layer.path or "not reached" for layer in self.layers]
        return ", ".join(f"{paths.count(path)} {path}" for path in sorted(set(paths)))
