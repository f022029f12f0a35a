"""Every path in every precision beside the definition in float64 on the CPU, and certificates with TensorFloat-32."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from convattn import (
    AttentionNet,
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
    attention_to_conv,
    conv_to_attention,
    network_to_conv,
)
from convattn.encodings import AxisAdditiveEncoding, create_encoding
from convattn.layers import RelativeAttention
from evidence.card.rows import Stage, use_tf32

Results = dict[str, Tensor]
"""Output, gradient of the images, and gradients of all parameters as one vector."""


@dataclass(frozen=True)
class Precision:
    """How numbers are computed: the dtype of weights and images, that of autocast, and TensorFloat-32."""

    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    tf32: bool = False


PRECISIONS = {
    "float32": Precision(),
    "TF32": Precision(tf32=True),
    "bfloat16 autocast": Precision(autocast=torch.bfloat16),
    "float16 autocast": Precision(autocast=torch.float16),
    "all bfloat16": Precision(torch.bfloat16),
    "float64": Precision(torch.float64),
}
"""Precisions by the names that rows give them."""

_TINY = ("float32", "bfloat16 autocast")

CONVOLUTIONS = ((3, 3), (16, 1), (16, 3), (64, 3), (256, 3))
"""Channels and kernel size of the convolutions that are converted."""


@dataclass(frozen=True)
class Case:
    """A layer, the path that computes it, and the shape of its images."""

    name: str
    kind: type[RelativeAttention]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    impl: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> RelativeAttention:
        """Draws the layer."""
        torch.manual_seed(1)
        return self.kind(*self.sizes, **self.options)


def run(stage: Stage) -> None:
    """Certifies convolutions and a network, then compares every layer in every precision."""
    for tf32, (channels, size) in product((False, True), CONVOLUTIONS):
        certified = partial(certificates, stage.device, tf32, channels, size)
        name = f"certificate, {channels} channels, {size} × {size}"
        stage.case(name, certified, precision="TF32" if tf32 else "float32")
    for tf32 in (False, True):
        certified = partial(certificate_of_network, stage.device, tf32)
        stage.case("certificate, network", certified, precision="TF32" if tf32 else "float32")
    names = _TINY if stage.tiny else tuple(PRECISIONS)
    for case in cases(side=8 if stage.tiny else 16):
        layer, x = case.build(), torch.randn(case.shape)
        exact, upstream = reference(layer, x)
        layer.impl = case.impl
        for name in names:
            compared = partial(compare, stage.device, PRECISIONS[name], layer, x, upstream, exact)
            stage.case(case.name, compared, precision=name, impl=case.impl)


def cases(side: int) -> Iterator[Case]:
    """Yields every encoding on each of its paths, and layers of other kinds."""
    shape = (3, 24, side, side + 3)
    names = ("quadratic", "generalized_quadratic", "distance", "linear_distance", "sinusoidal")
    for name in (*names, "learned_axial", "learned_table"):
        extent = {"extent": side + 3} if name.startswith("learned") else {}
        encoding = create_encoding(name, 9, 2, **extent)
        impls = ["auto", "dense", "fourier"]
        if isinstance(encoding, AxisAdditiveEncoding):
            impls.append("separable")
        options = {"num_heads": 9, "encoding": encoding}
        for impl in impls:
            yield Case(name, RelativeAttention2d, (24, 40), shape, impl, options)
    window = {"padding": 1, "encoding": "shift"}
    for impl in ("auto", "dense"):
        yield Case("shift", RelativeAttention2d, (24, 40, 3), shape, impl, window)
    strided = {"stride": 2, "padding": 1}
    yield Case("quadratic, stride 2", RelativeAttention2d, (24, 40, 3), shape, options=strided)
    yield from cases_with_content(shape)
    few = {"num_heads": 3, "encoding": "quadratic"}
    yield Case("quadratic, a sequence", RelativeAttention1d, (8, 8), (2, 8, 700), options=few)
    yield Case("quadratic, a volume", RelativeAttention3d, (8, 8), (2, 8, 5, 6, 7), options=few)


def cases_with_content(shape: tuple[int, ...]) -> Iterator[Case]:
    """Yields layers whose scores depend on the images."""
    heads, content = {"num_heads": 4}, Content(key_width=16)
    quadratic = {**heads, "encoding": "quadratic", "content": content}
    learned = {**heads, "encoding": create_encoding("learned_axial", 4, 2), "content": True}
    gated = {**quadratic, "content": Content(key_width=16, position=False), "gate": "sigmoid"}
    sizes = (24, 24)
    yield Case("content, quadratic", RelativeAttention2d, sizes, shape, options=quadratic)
    yield Case("content, quadratic", RelativeAttention2d, sizes, shape, "quadratic", quadratic)
    yield Case("content, learned axial", RelativeAttention2d, sizes, shape, options=learned)
    distance = {**quadratic, "encoding": "distance"}
    yield Case("content, distance", RelativeAttention2d, sizes, shape, options=distance)
    yield Case("content, gate", RelativeAttention2d, sizes, shape, options=gated)


def reference(layer: RelativeAttention, x: Tensor) -> tuple[Results, Tensor]:
    """Computes by the definition in float64 on the CPU, and draws the gradient of the output."""
    slow = copy.deepcopy(layer).double()
    slow.impl = "reference"
    upstream = torch.randn(slow(x.double()).shape, dtype=torch.float64)
    return computed(slow, x.double(), upstream), upstream


def computed(layer: nn.Module, x: Tensor, upstream: Tensor) -> Results:
    """Computes output and gradients, in the autocast around it."""
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    learning = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    own, *others = torch.autograd.grad(
        y, [leaf, *learning], upstream.to(y), allow_unused=True, materialize_grads=True
    )
    joined = torch.cat([gradient.flatten() for gradient in others])
    return {"output": y.detach(), "images": own, "parameters": joined}


def compare(
    device: torch.device,
    precision: Precision,
    layer: RelativeAttention,
    x: Tensor,
    upstream: Tensor,
    exact: Results,
) -> dict[str, Any]:
    """Computes twice on the device, and returns relative errors, the path, and whether both agree in every bit.

    A relative error is the Euclidean norm of the difference by that of what is right.
    """
    if precision.autocast is torch.float16 and device.type == "cpu":
        return {"skipped": "on CUDA only"}
    use_tf32(precision.tf32)
    own = copy.deepcopy(layer).to(device, precision.dtype)
    placed, above = x.to(device, precision.dtype), upstream.to(device)
    found = []
    for _ in range(2):
        _leave_nans(device)
        with torch.autocast(device.type, precision.autocast, precision.autocast is not None):
            found.append(computed(own, placed, above))
    first, again = found
    same = [torch.equal(first[name], again[name]) for name in first]
    plan = own.plan(x.shape, dtype=precision.dtype)
    return {**relative_errors(first, exact), "repeats": all(same), "path": plan.path}


def relative_errors(found: Results, exact: Results) -> dict[str, float]:
    """Returns the relative error of each part."""
    errors = {}
    for name, expected in exact.items():
        difference = found[name].double().cpu() - expected
        errors[name] = (difference.norm() / expected.norm()).item()
    return errors


def _leave_nans(device: torch.device) -> None:
    """Leaves NaN in memory that the allocator gives out next, so that a number that is never written is seen."""
    if device.type == "cuda":
        torch.full((64 << 20,), torch.nan, device=device)


def certificates(device: torch.device, tf32: bool, channels: int, size: int) -> dict[str, Any]:
    """Converts a convolution to hard attention and back, and to soft attention."""
    use_tf32(tf32)
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, channels, size, padding=size // 2).to(device)
    layer, there = conv_to_attention(convolution)
    _, back = attention_to_conv(layer)
    _, soft = conv_to_attention(convolution, sharpness=5.0)
    found = (there, back, soft)
    return {
        "verdicts": ", ".join(one.verdict for one in found),
        "errors": [one.measured_error for one in found],
        "roundings": [one.rounding for one in found],
    }


def certificate_of_network(device: torch.device, tf32: bool) -> dict[str, Any]:
    """Converts a small network to convolutions."""
    use_tf32(tf32)
    torch.manual_seed(0)
    network = AttentionNet(width=32, depth=2, heads=9, ffn=32).eval().to(device)
    images = torch.randn(2, 3, 16, 16, device=device)
    _, certificate = network_to_conv(network, borders="exact", images=images)
    return {"verdicts": certificate.verdict}
