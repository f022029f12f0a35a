"""Forecasts what a conversion would change, and what the new layers would cost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from convattn.convert import SamePaddedAttention, network_to_conv
from convattn.convert.certificate import LeftAlone
from convattn.convert.network import find_convolutions, with_attention
from convattn.convert.surgery import Arguments, full_name, input_shapes
from convattn.convert.to_attention import pad_same
from convattn.layers import RelativeAttention
from convattn.record import Record
from convattn.wording import ITSELF, counted


@dataclass(frozen=True)
class LayerForecast(Record):
    """One layer that would be replaced."""

    name: str  # Dotted name in the network
    source: str  # Class of the layer that is there
    result: str  # Class of the layer that would take its place
    heads: int  # Number of attention heads
    kernel_size: tuple[int, ...]  # Kernel of the convolution
    path: str  # How the new layer would compute, where it is called first
    flops_before: (
        int | None
    )  # Floating-point operations on the images, of all calls; None if they do not reach it
    flops_after: int | None  # The same of the new layer
    working_bytes: (
        int | None
    )  # Working memory of the attention layer at most, beyond input, output and parameters

    def summary(self) -> str:
        """Returns the layer in one line of plain text."""
        kernel = " x ".join(map(str, self.kernel_size))
        line = f"{self.name or ITSELF}: {self.source} to {self.result}, {counted(self.heads, 'head')}, kernel {kernel}"
        if self.flops_before is None or self.flops_after is None:
            return f"{line}, not reached"
        flops = f"{self.flops_before / 1e9:.3g} GFLOP before, {self.flops_after / 1e9:.3g} after"
        return f"{line}, {self.path}, {flops}, {_memory([self])}"


@dataclass(frozen=True)
class ConversionForecast(Record):
    """What the conversion of a network would change."""

    schema_version: ClassVar[int] = 2

    direction: str  # "network_to_attention" or "network_to_conv"
    source: str  # Class of the network
    shape: tuple[int, ...]  # Shape of the images that operations and memory are counted for
    layers: tuple[LayerForecast, ...]  # What would be replaced
    left_alone: tuple[LeftAlone, ...]  # What would not
    parameters_before: int  # Number of parameters of the network
    parameters_after: int  # The same after the conversion
    not_covered: tuple[str, ...]  # What the forecast says nothing about

    def summary(self) -> str:
        """Returns the forecast in plain text, with a line for each layer."""
        before, after = (
            sum(getattr(x, name) or 0 for x in self.layers)
            for name in ("flops_before", "flops_after")
        )
        count = counted(len(self.layers), "layer")
        lines = [f"{self.direction.replace('_', ' ')}: {count} of {self.source} would change"]
        lines += [f"  layer        {layer.summary()}" for layer in self.layers]
        lines += [f"  left alone   {reason}" for reason in LeftAlone.in_words(self.left_alone)]
        lines += [
            f"  parameters   {self.parameters_before:,} before, {self.parameters_after:,} after",
            f"  operations   of these layers on images {self.shape}: {before:,} before, {after:,} after",
            f"  memory       of one layer's attention, at most: {_memory(self.layers)}",
        ]
        return "\n".join(lines + [f"  not covered  {item}" for item in self.not_covered])


def _memory(layers: Iterable[LayerForecast]) -> str:
    """Returns the largest working memory of layers, in words."""
    return f"{max((layer.working_bytes or 0 for layer in layers), default=0) / 2**20:.4g} MiB"


def forecast_attention(
    network: nn.Module,
    images: Tensor,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    **options: Any,
) -> ConversionForecast:
    """Tells what `network_to_attention` with these options would change, by converting without measuring."""
    found, left = find_convolutions(network, include, exclude)
    made, _ = with_attention(network, found, **options)
    return _forecast(
        "network_to_attention", network, made, images, [item.names for item in found], left
    )


def forecast_conv(network: nn.Module, images: Tensor, **options: Any) -> ConversionForecast:
    """Tells what `network_to_conv` with these options would change, by converting without measuring."""
    made, certificate = network_to_conv(network, **options)
    changed = [(layer.name, *layer.aliases) for layer in certificate.layers]
    return _forecast("network_to_conv", network, made, images, changed, certificate.left_alone)


def _forecast(
    direction: str,
    network: nn.Module,
    made: nn.Module,
    images: Tensor,
    changed: Sequence[tuple[str, ...]],
    left: Sequence[LeftAlone],
) -> ConversionForecast:
    """Compares a network with the one made from it, in the layers with the names `changed`."""
    shapes = input_shapes(
        network, Arguments((images,), {}, "the images given"), [names[0] for names in changed]
    )
    layers = []
    for names in changed:
        old, new = (one.get_submodule(names[0]) for one in (network, made))
        layers.append(_forecast_layer(names, old, new, shapes.get(names[0], [])))
    return ConversionForecast(
        direction=direction,
        source=full_name(type(network)),
        shape=tuple(images.shape),
        layers=tuple(layers),
        left_alone=tuple(left),
        parameters_before=sum(parameter.numel() for parameter in network.parameters()),
        parameters_after=sum(parameter.numel() for parameter in made.parameters()),
        not_covered=(
            "operations and memory of all other layers",
            "convolutions that are called as functions",
        ),
    )


def _forecast_layer(
    names: Sequence[str], old: nn.Module, new: nn.Module, shapes: Sequence[tuple[int, ...]]
) -> LayerForecast:
    """Counts operations, of all calls, and memory of one layer; `shapes` are empty where no image reaches it."""
    to_conv = isinstance(old, RelativeAttention)
    conv: Any = new if to_conv else old
    attention: Any = old if to_conv else new
    if isinstance(attention, SamePaddedAttention):
        attention = attention.attention
        shapes = [
            tuple(pad_same(torch.empty(shape, device="meta"), attention.geometry).shape)
            for shape in shapes
        ]
    plans, convolution = [attention.plan(shape) for shape in shapes], 0
    for shape in shapes:
        outputs = [len(axis.queries) for axis in attention.geometry.axes(shape[2:])]
        # Each weight meets every output pixel; transposed, every input pixel.
        pixels = math.prod(
            shape[2:] if isinstance(conv, nn.modules.conv._ConvTransposeNd) else outputs
        )
        convolution += (
            2 * shape[0] * pixels * (getattr(conv, "multiplications", None) or conv.weight.numel())
        )
    path, flops, working = "convolution" if to_conv else "not reached", (None, None), None
    if plans:
        attended = sum(plan.flops for plan in plans)
        flops = (attended, convolution) if to_conv else (convolution, attended)
        path, working = path if to_conv else plans[0].path, max(plan.bytes for plan in plans)
    return LayerForecast(
        name=names[0],
        source=type(old).__name__,
        result=type(new).__name__,
        heads=attention.num_heads,
        kernel_size=tuple(getattr(conv, "taps", conv.kernel_size)),
        path=path,
        flops_before=flops[0],
        flops_after=flops[1],
        working_bytes=working,
    )
