"""Who takes part in a case, by name: the layer, its reference path, and the peers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from einops import rearrange
from torch import Tensor, nn

from convattn.benchmark.build import (
    Setting,
    build_convolution,
    build_layer,
    path_taken,
    seeded,
    with_path,
)
from convattn.benchmark.cases import LayerCase
from convattn.benchmark.peers import DenseBiasAttention, FlexBiasAttention, compiled_flex, create_gpsa
from convattn.benchmark.published import PublishedAttention
from convattn.layers import RelativeAttention

__all__ = ["CONTENDERS", "OURS", "Contender"]

OURS = frozenset({"convattn", "reference"})
"""Contenders that are this library's own; if one does not run, that is an error and not a finding."""


@dataclass(frozen=True, eq=False)
class Contender:
    """A module that takes part in a case.

    Attributes:
        module: The module, placed and in the case's mode.
        note: What it is.
        layer: The layer whose parameters it computes with, of which gradients are compared; None where it has its own.
        same_function: Whether it computes the function of the case's layer, and so is checked before it is timed.
        tokens: Width of the (batch, pixels, channels) that it takes instead of images; None for images.
    """

    module: nn.Module
    note: str
    layer: RelativeAttention | None = None
    same_function: bool = False
    tokens: int | None = None

    def path(self, batch: int, size: int) -> str | None:
        """Returns the path that the library's layer takes for square images; None of a peer."""
        return path_taken(self.module, batch, size) if isinstance(self.module, RelativeAttention) else None

    def prepare(self, images: Tensor) -> Tensor:
        """Returns images in the form that the module takes."""
        if self.tokens is None:
            return images
        return rearrange(
            images[:, : self.tokens], "batch channels rows cols -> batch (rows cols) channels"
        ).contiguous()


def _ours(case: LayerCase, setting: Setting) -> Contender:
    layer = setting.place(build_layer(case), training=case.training)
    return Contender(layer, 'this library, impl="auto"', layer, same_function=True)


def _reference(case: LayerCase, setting: Setting) -> Contender:
    layer = setting.place(with_path(build_layer(case), "reference"), training=case.training)
    return Contender(
        layer,
        "this library's readable path: explicit weights, without content once for all images",
        layer,
        same_function=True,
    )


def _published(case: LayerCase, setting: Setting) -> Contender:
    layer = setting.place(build_layer(case), training=case.training)
    peer = PublishedAttention(layer).train(case.training)
    return Contender(
        peer, "the published formulation: scores of all pairs, softmax, one einsum", layer, same_function=True
    )


def _conv(case: LayerCase, setting: Setting) -> Contender:
    conv = setting.place(build_convolution(case), training=case.training)
    same = case.kind == "hard" and not case.training
    note = "nn.Conv2d 3×3, " + ("the convolution that the layer was made from" if same else "another function")
    return Contender(conv, note, same_function=same)


def _sdpa(case: LayerCase, setting: Setting) -> Contender:
    layer = setting.place(build_layer(case), training=case.training)
    peer = DenseBiasAttention(layer).train(case.training)
    return Contender(peer, "torch scaled_dot_product_attention with a bias per pair", layer, same_function=True)


def _gpsa(case: LayerCase, setting: Setting) -> Contender:
    with seeded(case.seed):
        peer = setting.place(create_gpsa(case.channels, case.heads), training=case.training)
    width = case.channels - case.channels % case.heads
    note = f"timm ConViT GPSA, {width} channels, narrow heads: another function"
    return Contender(peer, note, tokens=width)


def _flex(case: LayerCase, setting: Setting) -> Contender:
    attention = compiled_flex(setting.torch_device)
    layer = setting.place(build_layer(case), training=case.training)
    peer = FlexBiasAttention(layer, attention).train(case.training)
    return Contender(peer, "torch FlexAttention with a table of scores", layer, same_function=True)


CONTENDERS: Mapping[str, Callable[[LayerCase, Setting], Contender]] = MappingProxyType(
    {
        "convattn": _ours,
        "reference": _reference,
        "published": _published,
        "conv": _conv,
        "sdpa": _sdpa,
        "gpsa": _gpsa,
        "flex": _flex,
    }
)
"""Builders of the contenders, each from the data of a case alone."""
