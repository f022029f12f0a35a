"""What the conversion of a network would change, and what it would cost."""

from dataclasses import dataclass

from convattn.records.network_certificate import LeftAlone
from convattn.records.record import Record
from convattn.records.words import counted


@dataclass(frozen=True)
class LayerForecast(Record):
    """One layer that would be replaced."""

    name: str  # Dotted name in the network
    aliases: tuple[str, ...]  # Further names of the same module
    source: str  # Class of the layer that is there
    result: str  # Class of the layer that would take its place
    heads: int  # Number of attention heads
    kernel_size: tuple[int, ...]  # Kernel of the convolution
    path: str  # How the new layer would compute
    parameters_before: int  # Number of parameters of the layer that is there
    parameters_after: int  # The same of the new one
    flops_before: int | None  # Floating-point operations on the images; None if they do not reach the layer
    flops_after: int | None  # The same of the new layer
    working_bytes: int | None  # Working memory of the attention layer, beyond input, output and parameters
    pairs_bytes: int | None  # Memory of its weights if every head held one number for each query and key


@dataclass(frozen=True)
class ConversionForecast(Record):
    """What the conversion of a network would change."""

    direction: str  # "network_to_attention" or "network_to_conv"
    source: str  # Class of the network
    shape: tuple[int, ...]  # Shape of the images that operations and memory are counted for
    layers: tuple[LayerForecast, ...]  # What would be replaced
    left_alone: tuple[LeftAlone, ...]  # What would not
    parameters_before: int  # Number of parameters of the network
    parameters_after: int  # The same after the conversion
    not_covered: tuple[str, ...]  # What the forecast says nothing about

    def summary(self) -> str:
        """Returns the forecast as a table and a few lines of plain text."""
        heads = ("layer", "is", "becomes", "heads", "kernel", "path", "GFLOP", "then", "working", "all pairs")
        rows = [heads, *(_row(layer) for layer in self.layers)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        before, after = (
            sum(getattr(layer, name) or 0 for layer in self.layers) for name in ("flops_before", "flops_after")
        )
        working, pairs = (
            max((getattr(layer, name) or 0 for layer in self.layers), default=0)
            for name in ("working_bytes", "pairs_bytes")
        )
        count = counted(len(self.layers), "layer")
        return "\n".join(
            [
                f"{self.direction.replace('_', ' ')}: {count} of {self.source} would change",
                *table,
                *(f"left alone: {item.summary()}" for item in self.left_alone),
                f"parameters: {self.parameters_before:,} before, {self.parameters_after:,} after",
                f"operations of these layers on images {self.shape}: {before:,} before, {after:,} after",
                f"memory of one layer's attention: at most {_size(working)}, with weights for all pairs {_size(pairs)}",
                *(f"not covered: {item}" for item in self.not_covered),
            ]
        )


def _row(layer: LayerForecast) -> tuple[str, ...]:
    return (
        layer.name or "(itself)",
        layer.source,
        layer.result,
        str(layer.heads),
        "x".join(map(str, layer.kernel_size)),
        layer.path,
        *("" if count is None else f"{count / 1e9:.3g}" for count in (layer.flops_before, layer.flops_after)),
        *("" if size is None else _size(size) for size in (layer.working_bytes, layer.pairs_bytes)),
    )


def _size(count: int) -> str:
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.4g} {unit}"
