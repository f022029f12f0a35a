"""One layer against its peers: its reference path, the published formulation, and what torch and timm have."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType

from torch import Tensor, nn

from benchmarks.cases.case import Case, Contender, bytes_held, path_taken
from benchmarks.cases.peers import DenseBiasAttention
from benchmarks.cases.published import PublishedAttention
from benchmarks.correctness import Truth, some_queries
from benchmarks.measure import make_call
from benchmarks.setting import Setting, seeded
from convattn.convert import conv_to_attention
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.models import AttentionNet

_OURS = frozenset({"convattn", "reference"})
_CHECKED_IMAGES = 2


@dataclass(frozen=True, kw_only=True)
class LayerCase(Case):
    """One layer on images of one size, against its peers.

    Attributes:
        kind: What layer: the name of an encoding, "hard" (made from a 3 × 3 convolution) or "content" (the mixer of
            `AttentionNet("learned_axial", content=True)`).
        channels: Channels in and out.
        heads: Number of heads.
        size: Rows and columns of the images.
        batch: Number of images.
        forms: Names of what is measured; see `FORMS`.
        training: Whether gradients of input and parameters are taken too, in training mode; else inference.
    """

    kind: str
    channels: int
    heads: int
    size: int
    batch: int
    forms: tuple[str, ...] = ("convattn", "reference", "published", "conv", "sdpa")
    training: bool = False

    @property
    def title(self) -> str:
        """What is measured, in words."""
        task = "forward and backward" if self.training else "forward"
        what = {
            "hard": "hard heads of a 3×3 convolution",
            "content": "learned axial with content",
        }.get(self.kind)
        sizes = f"{self.heads} heads, {self.channels} channels, {self.size}×{self.size}, batch {self.batch}"
        return f"{what or self.kind.replace('_', ' ')}, {sizes}, {task}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, channels, rows and columns."""
        return self.batch, self.channels, self.size, self.size

    def contenders(self, setting: Setting) -> Mapping[str, Callable[[], Contender]]:
        """Returns what builds each form; the references of the checked forms are computed once."""
        images = setting.draw(self.shape, self.seed)

        @cache
        def truth() -> Truth:
            few = setting.draw((min(self.batch, _CHECKED_IMAGES), *self.shape[1:]), self.seed)
            layer = setting.place(build_layer(self), training=self.training)
            return Truth(
                layer, few, some_queries(self.size**2, few.device), gradients=self.training
            )

        return {name: partial(self._enter, name, setting, images, truth) for name in self.forms}

    def _enter(
        self, name: str, setting: Setting, images: Tensor, truth: Callable[[], Truth]
    ) -> Contender:
        form = FORMS[name](self, setting)
        return Contender(
            call=make_call(form.module, images, training=self.training),
            describe=lambda: (form.note, path_taken(form.module, self.shape)),
            check=(lambda: truth().check(form, form.layer)) if form.same_function else None,
            warm_up=make_call(form.module, images[:1, :, :4, :4], training=self.training),
            weights=bytes_held(form.module),
            ours=name in _OURS,
        )


@dataclass(frozen=True, eq=False)
class Form:
    """A module that does the task of a case.

    Attributes:
        module: The module, placed and in the case's mode.
        note: What it is.
        layer: The layer whose parameters it computes with, of which gradients are compared; None where it has its own.
        same_function: Whether it computes the function of the case's layer, and so is checked before it is timed.
    """

    module: nn.Module
    note: str
    layer: RelativeAttention | None = None
    same_function: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """Computes the outputs for images."""
        return self.module(images)


def build_convolution(case: LayerCase) -> nn.Conv2d:
    """Makes the 3 × 3 convolution of a case, which keeps sizes: the peer of all layers, and the source of hard ones."""
    with seeded(case.seed):
        return nn.Conv2d(case.channels, case.channels, kernel_size=3, padding=1)


def build_layer(case: LayerCase) -> RelativeAttention:
    """Makes the layer of a case, in float32 on the CPU, with the path "auto"."""
    if case.kind == "hard":
        return conv_to_attention(build_convolution(case))[0]
    with seeded(case.seed):
        if case.kind == "content":
            return _content_mixer(case)
        return RelativeAttention2d(
            case.channels, case.channels, num_heads=case.heads, encoding=case.kind
        )


def _content_mixer(case: LayerCase) -> RelativeAttention:
    network = AttentionNet(
        "learned_axial",
        content=True,
        width=case.channels,
        depth=1,
        heads=case.heads,
        ffn=case.channels,
        dropout=0.0,
        image_size=2 * case.size,
        initializer_range=0.02 * math.sqrt(400 / case.channels),
    )
    mixer = network.blocks[0].mixer
    assert isinstance(mixer, RelativeAttention)
    return mixer


def _same_function(
    note: str, make: Callable[[RelativeAttention], nn.Module]
) -> Callable[[LayerCase, Setting], Form]:
    """Makes the builder of a module that computes the function of the layer that it is made from."""

    def build(case: LayerCase, setting: Setting) -> Form:
        layer = setting.place(build_layer(case), training=case.training)
        return Form(make(layer).train(case.training), note, layer, same_function=True)

    return build


def _reference(layer: RelativeAttention) -> RelativeAttention:
    layer.impl = "reference"
    return layer


def _conv(case: LayerCase, setting: Setting) -> Form:
    conv = setting.place(build_convolution(case), training=case.training)
    same = case.kind == "hard" and not case.training
    note = "nn.Conv2d 3×3, " + (
        "the convolution that the layer was made from" if same else "another function"
    )
    return Form(conv, note, same_function=same)


FORMS: Mapping[str, Callable[[LayerCase, Setting], Form]] = MappingProxyType(
    {
        "convattn": _same_function('this library, impl="auto"', lambda layer: layer),
        "reference": _same_function(
            "this library's readable path: explicit weights, without content once for all images",
            _reference,
        ),
        "published": _same_function(
            "the published formulation: scores of all pairs, softmax, one einsum",
            PublishedAttention,
        ),
        "conv": _conv,
        "sdpa": _same_function(
            "torch scaled_dot_product_attention with a bias per pair", DenseBiasAttention
        ),
    }
)
"""Builders of the forms, each from the data of a case alone."""
