"""What a call of a layer costs, in the words of a `Plan`."""

import math

from convattn.functional import Bands, Cost, Filters, Shifts
from convattn.layers.call import Call
from convattn.layers.execution import Prepared
from convattn.records import Plan

__all__ = ["describe", "describe_content"]


def describe(call: Call, prepared: Prepared | None) -> Plan:
    """States how a call is computed and what it costs.

    Args:
        call: What is to be computed.
        prepared: What `prepare` chose; None for the reference path.

    Returns:
        The plan.
    """
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
    maps = call.values.maps().detach()
    largest = 0.0 if maps.is_meta else maps.double().abs().sum((0, 2)).max().item()
    return _plan(call, prepared.path, prepared.order, prepared.reason, cost, bound=2 * prepared.leak * largest)


def describe_content(call: Call, path: str, reason: str, key_width: int, *, features: bool) -> Plan:
    """States how a call with content is computed and what it costs.

    Args:
        call: What is to be computed.
        path: Path taken.
        reason: Why.
        key_width: Width of queries and keys per head.
        features: Whether there is a content–position term.

    Returns:
        The plan.
    """
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
