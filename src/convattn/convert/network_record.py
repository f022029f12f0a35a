"""What the conversion of a whole network promises, and what was measured of it."""

from dataclasses import dataclass

from convattn.records import Record

__all__ = ["ConvertedLayer", "LeftAlone", "NetworkToAttentionCertificate"]


@dataclass(frozen=True)
class ConvertedLayer(Record):
    """One convolution of a network, and the attention layer in its place.

    Attributes:
        name: Dotted name in the network.
        aliases: Further names of the same module.
        source: The convolution, as it prints itself.
        heads: Number of heads, one per tap.
        exact: Whether nothing is lost but rounding.
        bound_per_unit: A-priori bound on the largest output error for inputs of absolute value ≤ 1; excludes rounding.
        measured_error: Largest difference to the convolution in float64 on a small standard normal input.
        rounding: Largest difference that rounding explains there.
        path: How the layer computed on the network's images; None where they did not reach it.
        passed: Whether the measured error is within bound and rounding.
        notes: What the layer does not take over from the module, or does in another way.
    """

    name: str
    aliases: tuple[str, ...]
    source: str
    heads: int
    exact: bool
    bound_per_unit: float
    measured_error: float
    rounding: float
    path: str | None
    passed: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LeftAlone(Record):
    """A convolution that is one still.

    Attributes:
        name: Dotted name of the module, or of the module that calls a convolution as a function.
        kind: Its class.
        reason: Why it was left.
    """

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class NetworkToAttentionCertificate(Record):
    """What the conversion of a network promises layer by layer, and what was measured end to end.

    Attributes:
        source: Class of the network.
        impl: Path demanded of the layers.
        layers: The convolutions converted.
        left: The convolutions left alone.
        images: What the network was measured on, in words.
        shapes: Shapes of its tensors.
        reference: Dtype of the network that the results are held against, for instance "float64".
        measured_error: Largest difference to the reference over all outputs, at the output that comes closest to its
            budget.
        rounding: What rounding explains of it, by the error budget of `docs/error-budget.md`.
        largest: Largest absolute value of that output.
        top1_total: Number of predictions, where the first output is one of scores (images, classes); otherwise None.
        top1_changed: How many of them have another largest class than the reference.
        passed: Whether every layer passed, and, where all layers are exact, the network as a whole.
        not_covered: What the certificate says nothing about.
    """

    source: str
    impl: str
    layers: tuple[ConvertedLayer, ...]
    left: tuple[LeftAlone, ...]
    images: str
    shapes: tuple[tuple[int, ...], ...]
    reference: str
    measured_error: float
    rounding: float
    largest: float
    top1_total: int | None
    top1_changed: int | None
    passed: bool
    not_covered: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether no layer loses anything but rounding."""
        return all(layer.exact for layer in self.layers)

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        heads = sum(layer.heads for layer in self.layers)
        kind = f"{'exact' if self.exact else 'approximate'}, {len(self.layers)} layers, {heads} heads"
        lines = [
            f"network to attention: {'passed' if self.passed else 'FAILED'} ({kind})",
            f"  from            {self.source}",
            f"  paths           {self._paths()}",
            f"  measured error  {self.measured_error:.3g} of {self.largest:.3g}, on {self.images}",
            f"  rounding        {self.rounding:.3g}, against {self.reference}",
        ]
        if self.top1_total is not None:
            lines.append(f"  top-1 changed   {self.top1_changed} of {self.top1_total}")
        for note in dict.fromkeys(note for layer in self.layers for note in layer.notes):
            names = [layer.name for layer in self.layers if note in layer.notes]
            lines.append(f"  changed         {note} ({_some(names)})")
        failed = [layer for layer in self.layers if not layer.passed]
        lines += [f"  layer FAILED    {one.name}: {one.measured_error:.3g} ({one.source})" for one in failed]
        lines += [f"  left alone      {item.name} ({item.kind}): {item.reason}" for item in self.left]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)

    def _paths(self) -> str:
        """Counts the layers by path."""
        paths = [layer.path or "not reached" for layer in self.layers]
        return ", ".join(f"{paths.count(path)} {path}" for path in sorted(set(paths)))


def _some(names: list[str]) -> str:
    """Names the first few of many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
