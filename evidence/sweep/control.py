"""A control that must fail: the converted network with one weight turned about."""

from typing import Any

import torch
from torch import nn

from convattn.convert.certificate import NetworkCertificate
from evidence.sweep.subjects import Built, run


def turn_one_weight(
    built: Built, made: nn.Module, certificate: NetworkCertificate
) -> dict[str, Any]:
    """Changes the sign of the largest weight of the middle layer with several taps; tells whether the budget sees it.

    The changed network is at least max|changed − converted| − error away from the reference, where error is what the
    converted one is away from it. Beyond the budget of rounding, the certificate would have failed.

    Args:
        built: The network that was converted, and its arguments.
        made: The converted network; it is changed.
        certificate: Its certificate.

    Returns:
        The layer, how far off the network is at least in units of the budget, and whether that is beyond it.
    """
    reached = []
    for layer in certificate.layers:
        learns = any(True for _ in made.get_submodule(layer.name).parameters())
        if layer.path is not None and learns:
            reached.append(layer)
    spatial = [layer.name for layer in reached if layer.heads > 1] or [
        layer.name for layer in reached
    ]
    name = spatial[len(spatial) // 2]
    before = run(built._replace(network=made))
    weight = max(made.get_submodule(name).parameters(), key=lambda x: (x.ndim, x.numel()))
    with torch.no_grad():
        weight[torch.unravel_index(weight.abs().argmax(), weight.shape)] *= -1
    after = run(built._replace(network=made))
    moved = max(
        (new.double() - old).abs().max().item() for new, old in zip(after, before, strict=True)
    )
    assert certificate.measured_error is not None
    assert certificate.rounding is not None
    rounding = certificate.rounding or torch.finfo(torch.float64).tiny
    share = (moved - certificate.measured_error) / rounding
    return {"layer": name, "share_of_budget": share, "rejected": share > 1}
