"""What a call of a layer costs, in the words of a `Plan`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from convattn.functional import Bands, Cost, Filters, Shifts
from convattn.layers.arguments import image_shape, require_images
from convattn.layers.call import Call, call_of
from convattn.layers.execution import Prepared, prepare
from convattn.records import Plan

if TYPE_CHECKING:
    from convattn.layers.relative import RelativeAttention

__all__ = ["describe_layer"]


def describe_layer(
    layer: "RelativeAttention",
    shape: Sequence[int],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Plan:
    """States how a layer computes in its present mode, and what it costs.

    Args:
        layer: The layer.
        shape: Shape of the images, (batch, in_channels, *spatial).
        dtype: Their dtype; the weights' where None.
        device: Their device; the weights' where None.

    Returns:
        The plan.
    """
    weight = next(layer.values.parameters())
    sizes = image_shape(shape, layer.in_channels, layer.dims)
    x = torch.empty(sizes, dtype=dtype or weight.dtype, device="meta")
    require_images(x, layer.in_channels, layer.dims, weight.dtype)
    axes = layer.geometry.axes(x.shape[2:])
    call = call_of(layer, x.shape, x.dtype, torch.device(device or weight.device), axes)
    if layer.content is None or not layer.needs_content():
        return _describe(call, None if layer.impl == "reference" else prepare(call))
    path, reason = (layer.impl, "demanded") if layer.impl != "auto" else ("content", "the scores depend on the input")
    width = layer.content.query.out_features // layer.num_heads
    return _describe_content(call, path, reason, width, features=layer.content.uses_position)


def _describe(call: Call, prepared: Prepared | None) -> Plan:
    """States how a call without content is computed; `prepared` is None for the reference path."""
    work = call.work
    if prepared is None:
        return _plan(call, "reference", "weights", "demanded", work.reference(), bound=0.0)
    if isinstance(prepared.made, Shifts):
        cost = work.shift(math.prod(prepared.made.window[1]))
    elif isinstance(prepared.made, Bands):
        cost = work.bands(prepared.made, call.axes[0].queries.step)
    elif isinstance(prepared.made, Filters):
        cost = work.fourier()
    else:
        by_axis = prepared.path == "separable"
        cost = (work.values_first if prepared.order == "values" else work.weights_first)(by_axis=by_axis)
    maps = call.maps().detach()
    largest = 0.0 if maps.is_meta else maps.double().abs().sum((0, 2)).max().item()
    return _plan(call, prepared.path, prepared.order, prepared.reason, cost, bound=2 * prepared.leak * largest)


def _describe_content(call: Call, path: str, reason: str, key_width: int, *, features: bool) -> Plan:
    """States how a call with content is computed, with queries and keys of a width and perhaps features r_δ."""
    along = [axis.highest - axis.lowest + 1 for axis in call.axes]
    displacements = (sum(along) if call.encoding.axis_additive else math.prod(along)) if features else 0
    if path == "reference":
        cost = call.work.explicit_content(key_width, features=features)
    elif path == "flex":
        fused = call.device.type == "cuda"
        cost = call.work.flex(key_width, displacements, fused=fused)
        reason += (
            ", in one kernel" if fused else ", without gradients and with all weights in memory: the device is not CUDA"
        )
    else:
        cost = call.work.content(key_width, displacements)
    return _plan(call, path, "weights", reason, cost, bound=0.0)


def _plan(call: Call, path: str, order: str, reason: str, cost: Cost, *, bound: float) -> Plan:
    shape = (call.work.batch, call.work.channels, *call.spatial)
    dtype = str(call.dtype).removeprefix("torch.")
    return Plan(path, order, reason, cost.flops, cost.bytes, bound, shape, dtype, str(call.device))
