"""Forecasts what a conversion would change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from convattn.convert import SamePaddedAttention, conv_to_attention, network_to_conv
from convattn.convert.certificate import LeftAlone
from convattn.convert.network import find_convolutions, require_path
from convattn.convert.surgery import Arguments, full_name, input_shapes
from convattn.convert.to_attention import pad_same
from convattn.layers import RelativeAttention
from convattn.record import Record
from convattn.wording import counted


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


_NOT_COVERED = ("operations and memory of all other layers", "convolutions that are called as functions")


def forecast_attention(
    network: nn.Module,
    images: Tensor,
    *,
    sharpness: float | None = None,
    impl: str = "auto",
    content: bool = False,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
) -> ConversionForecast:
    """Tells what `network_to_attention` would change in a network, which is run once on the images."""
    require_path(impl, content=content)
    found, left = find_convolutions(network, include, exclude)
    changes = []
    for item in found:
        layer, _ = conv_to_attention(item.conv, sharpness=sharpness, content=content, impl=impl)
        kinds = type(item.module), SamePaddedAttention if item.same else type(layer)
        changes.append(_Change(item.names, *kinds, layer, item.conv))
    return _forecast(network, images, changes, left, None)


def forecast_conv(network: nn.Module, images: Tensor, **options: Any) -> ConversionForecast:
    """Tells what `network_to_conv` with these options would change, by converting without measuring."""
    made, certificate = network_to_conv(network, **options)
    changes = []
    for entry in certificate.layers:
        layer, conv = network.get_submodule(entry.name), made.get_submodule(entry.name)
        assert isinstance(layer, RelativeAttention)
        changes.append(_Change((entry.name, *entry.aliases), type(layer), type(conv), layer, conv))
    return _forecast(network, images, changes, certificate.left_alone, made)


class _Change(NamedTuple):
    """A layer to be replaced: attention and the convolution that it equals, one of them new."""

    names: Sequence[str]  # Its names in the network
    source: type  # Class of the layer that is there
    result: type  # Class of the layer that would take its place
    attention: RelativeAttention
    conv: nn.Module


def _forecast(
    network: nn.Module,
    images: Tensor,
    changes: Sequence[_Change],
    left: Sequence[LeftAlone],
    made: nn.Module | None,
) -> ConversionForecast:
    """Puts the forecast of a network together; `made` is the network of convolutions, or None towards attention."""
    given, first = Arguments((images,), {}, "the images given"), [change.names[0] for change in changes]
    shapes = input_shapes(network, given, first)
    layers = tuple(
        _forecast_layer(change, next(iter(shapes.get(change.names[0], ())), None), to_conv=made is not None)
        for change in changes
    )
    added = sum(layer.parameters_after - layer.parameters_before for layer in layers)
    return ConversionForecast(
        direction="network_to_attention" if made is None else "network_to_conv",
        source=full_name(type(network)),
        shape=tuple(images.shape),
        layers=layers,
        left_alone=tuple(left),
        parameters_before=_parameters(network),
        parameters_after=_parameters(network) + added if made is None else _parameters(made),
        not_covered=_NOT_COVERED,
    )


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _forecast_layer(change: _Change, shape: tuple[int, ...] | None, *, to_conv: bool) -> LayerForecast:
    """Counts parameters, operations and memory of one layer; `shape` is None where no image reaches it."""
    attention, conv = change.attention, change.conv
    before, after = (attention, conv) if to_conv else (conv, attention)
    flops: dict[nn.Module, int | None] = {attention: None, conv: None}
    path, working, pairs = "not reached", None, None
    if shape is not None:
        if change.result is SamePaddedAttention:
            shape = tuple(pad_same(torch.empty(shape, device="meta"), attention.geometry).shape)
        plan = attention.plan(shape)
        path, working, pairs = plan.path, plan.bytes, _pairs_bytes(attention, shape)
        flops = {attention: plan.flops, conv: _convolution_flops(conv, attention, shape)}
    return LayerForecast(
        name=change.names[0],
        aliases=tuple(change.names[1:]),
        source=change.source.__name__,
        result=change.result.__name__,
        heads=attention.num_heads,
        kernel_size=tuple(conv.kernel_size),  # type: ignore[arg-type]
        path="convolution" if to_conv else path,
        parameters_before=_parameters(before),
        parameters_after=_parameters(after),
        flops_before=flops[before],
        flops_after=flops[after],
        working_bytes=working,
        pairs_bytes=pairs,
    )


def _convolution_flops(conv: nn.Module, attention: RelativeAttention, shape: tuple[int, ...]) -> int:
    """Counts a convolution: every number of its weight meets every output pixel, transposed every input pixel."""
    transposed = isinstance(conv, nn.modules.conv._ConvTransposeNd)
    outputs = [len(axis.queries) for axis in attention.geometry.axes(shape[2:])]
    pixels = math.prod(shape[2:] if transposed else outputs)
    weight = conv.weight
    assert isinstance(weight, Tensor)
    return 2 * shape[0] * pixels * weight.numel()


def _pairs_bytes(attention: RelativeAttention, shape: tuple[int, ...]) -> int:
    """Counts the memory of one weight for each head, query and key."""
    axes = attention.geometry.axes(shape[2:])
    pairs = math.prod(len(axis.queries) * axis.keys for axis in axes)
    return attention.num_heads * pairs * next(attention.values.parameters()).element_size()
