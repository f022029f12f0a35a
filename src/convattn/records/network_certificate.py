"""What the conversion of a whole network promises, layer by layer, and what was measured of it end to end."""

from dataclasses import dataclass

from convattn.records.record import Record

__all__ = ["LayerCertificate", "NetworkCertificate"]


@dataclass(frozen=True)
class LayerCertificate(Record):
    """One converted layer of a network: what `Certificate` says of it, in short.

    Attributes:
        name: Where the layer stands in the network, as in `named_modules`; the first name of a layer that has several.
        source: The module converted, as it prints itself.
        result: The module that replaces it, as it prints itself.
        heads: Number of attention heads, of the source or of the result.
        kernel_size: Kernel of the convolution, of the source or of the result; None where there is none.
        exact: Whether nothing is lost but rounding.
        leak: Bound on the attention mass outside a head's own pixel (or, towards a convolution, outside the window).
        bound_per_unit: A-priori bound on the largest output error for inputs of absolute value ≤ 1; excludes rounding.
        bound: The a-priori bound for the random input on which the layer was measured.
        measured_error: Largest output difference to the source's function in float64 on that input.
        rounding: Largest difference that the dtype's rounding explains there.
        passed: Whether measured_error ≤ bound + rounding.
        path: How the result computes on that input: the attention's path, or "convolution".
        note: What else there is to say, for instance its other names or what was folded in; empty where nothing.
    """

    name: str
    source: str
    result: str
    heads: int
    kernel_size: tuple[int, ...] | None
    exact: bool
    leak: float
    bound_per_unit: float
    bound: float
    measured_error: float
    rounding: float
    passed: bool
    path: str
    note: str = ""

    def summary(self) -> str:
        """Returns the layer in one line of plain text."""
        state = "passed" if self.passed else "FAILED"
        kind = "exact" if self.exact else f"leak {self.leak:.3g}"
        kernel = "" if self.kernel_size is None else f", kernel {' x '.join(map(str, self.kernel_size))}"
        allowed = f"{self.bound + self.rounding:.3g}"
        note = f"; {self.note}" if self.note else ""
        error = f"error {self.measured_error:.3g} of {allowed} allowed"
        return f"{self.name}: {state}, {kind}, {self.heads} heads{kernel}, {self.path}, {error}{note}"


@dataclass(frozen=True)
class NetworkCertificate(Record):
    """What the conversion of a whole network promises, and what was measured of it.

    Each layer has a bound of its own. End to end there is a promise only where every layer is exact: the networks agree
    within rounding. Where layers leak, the end-to-end numbers are measurements on the images given, and no bound.

    Attributes:
        direction: "network_to_attention" or "network_to_conv".
        source: Class of the network converted.
        result: Class of the network made.
        dtype: Dtype of the converted weights, for instance "float32".
        layers: The converted layers, in the order of their names in the network.
        left_alone: Name of each layer that could have been meant and was not converted, and the reason.
        exact: Whether every converted layer is exact.
        check_shape: Shape of the images on which the whole networks were compared; None where no images were given.
        error: Largest difference between the new network's output and the source's function in float64, end to end, on
            those images; None where there were none.
        scale: Largest absolute value of the source's output in float64 there; None where there were no images.
        rounding: Largest difference that the dtype's rounding explains there, by the error budget of
            `docs/error-budget.md`; None where there were no images.
        top1_changed: Number of images whose largest output is another than before; None where the output is not one row
            of scores per image, or there were no images.
        images: Number of images compared.
        accuracy_before: Share of the labels that the source predicts, in [0, 1]; None without labels.
        accuracy_after: The same of the network made.
        passed: Whether every layer passed and, where all are exact and images were given, error ≤ rounding.
        not_covered: What the certificate says nothing about.
    """

    direction: str
    source: str
    result: str
    dtype: str
    layers: tuple[LayerCertificate, ...]
    left_alone: tuple[tuple[str, str], ...]
    exact: bool
    check_shape: tuple[int, ...] | None
    error: float | None
    scale: float | None
    rounding: float | None
    top1_changed: int | None
    images: int
    accuracy_before: float | None
    accuracy_after: float | None
    passed: bool
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        kind = f"{'exact' if self.exact else 'approximate'}, {len(self.layers)} layers, {self.dtype}"
        lines = [
            f"{self.direction.replace('_', ' ')}: {'passed' if self.passed else 'FAILED'} ({kind})",
            f"  from            {self.source}",
            f"  to              {self.result}",
        ]
        if self.error is not None and self.scale is not None and self.rounding is not None:
            explained = f"rounding explains {self.rounding:.3g}, outputs reach {self.scale:.3g}"
            lines.append(f"  end to end      error {self.error:.3g} on images {self.check_shape}; {explained}")
        if self.top1_changed is not None:
            lines.append(f"  top-1 changed   {self.top1_changed} of {self.images}")
        if self.accuracy_before is not None and self.accuracy_after is not None:
            lines.append(f"  accuracy        {self.accuracy_before:.2%} before, {self.accuracy_after:.2%} after")
        lines += [f"  layer           {layer.summary()}" for layer in self.layers]
        lines += [f"  left alone      {name}: {reason}" for name, reason in self.left_alone]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)
