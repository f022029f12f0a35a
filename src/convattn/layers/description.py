"""How a call of a layer is computed and what it costs, as a `Plan`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from convattn.functional import Cost, Work
from convattn.layers.checks import image_shape, require_images
from convattn.layers.choice import REQUESTED, path_of, work_of
from convattn.records import Plan

if TYPE_CHECKING:
    from convattn.layers.relative import RelativeAttention


def describe_layer(
    layer: "RelativeAttention", shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None
) -> Plan:
    """Returns how a layer computes in its present mode, and what it costs; dtype and device default to the weights'."""
    weight = next(layer.values.parameters())
    sizes = image_shape(shape, layer.in_channels, layer.dims)
    x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
    on = torch.device(device or weight.device)
    require_images(x, layer.in_channels, layer.dims, weight.dtype, on)
    axes = layer.geometry.axes(x.shape[2:])
    if layer.content is not None and layer.needs_content():
        return _describe_content(layer, work_of(layer, layer.values.factors(), x.shape, x.dtype, on, axes), sizes)
    if layer.impl == "reference":
        work = work_of(layer, layer.values.factors(), x.shape, x.dtype, on, axes)
        return _plan(work, sizes, "reference", "weights", REQUESTED, work.reference(), bound=0.0)
    path, maps = path_of(layer, x.shape, x.dtype, on, axes)
    whole = maps.whole().detach()
    largest = 0.0 if whole.is_meta else whole.double().abs().sum((0, 2)).max().item()
    bound = 2 * path.leak * largest
    return _plan(path.work, sizes, path.name, path.order, path.reason, path.cost(), bound=bound)


def _describe_content(layer: "RelativeAttention", work: Work, shape: tuple[int, ...]) -> Plan:
    """Returns how a call with content is computed."""
    content = layer.content
    assert content is not None
    path, reason = (layer.impl, REQUESTED) if layer.impl != "auto" else ("content", "the scores depend on the input")
    key_width = content.query.out_features // layer.num_heads
    along = [axis.highest - axis.lowest + 1 for axis in work.axes]
    features = content.uses_position
    displacements = (sum(along) if layer.encoding.axis_additive else math.prod(along)) if features else 0
    if path == "reference":
        cost = work.explicit_content(key_width, features=features)
    elif path == "flex":
        fused = work.device.type == "cuda"
        cost = work.flex(key_width, displacements, fused=fused)
        slow = ", without gradients and with all weights in memory: the device is not CUDA"
        reason += ", in one kernel" if fused else slow
    else:
        cost = work.content(key_width, displacements)
    return _plan(work, shape, path, "weights", reason, cost, bound=0.0)


def _plan(work: Work, shape: tuple[int, ...], path: str, order: str, reason: str, cost: Cost, *, bound: float) -> Plan:
    dtype = str(work.dtype).removeprefix("torch.")
    return Plan(path, order, reason, cost.flops, cost.bytes, bound, shape, dtype, str(work.device))
