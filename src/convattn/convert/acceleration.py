"""Networks whose convolutions with large kernels follow a plan in place of one layout of torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from convattn.convert.agreement import AgreementCertificate, certify
from convattn.convert.surgery import (
    copy_network,
    graft,
    input_shapes,
    names_by_module,
    read_arguments,
)
from convattn.errors import ArgumentError, ConversionError, must_be_a
from convattn.layers import LargeKernelConv1d, LargeKernelConv2d, LargeKernelConv3d

_LAYERS = {nn.Conv1d: LargeKernelConv1d, nn.Conv2d: LargeKernelConv2d, nn.Conv3d: LargeKernelConv3d}


def accelerate_large_kernels(
    network: nn.Module, images: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None
) -> tuple[nn.Module, AgreementCertificate]:
    """Copies a network, and replaces the convolutions that torch computes slowly on a CPU by planned ones.

    A convolution is replaced if the plan of its result or of a gradient leaves torch's own way; subclasses stay.

    Args:
        network: The network, on a CPU; it is not changed.
        images: Images, or a tuple or mapping of the network's arguments; None draws one standard normal image.

    Returns:
        The copy, and whether it computes the same on these images, in evaluation mode.

    Raises:
        ArgumentError: The network is no module or does not take them. UnsupportedModelError: It cannot be copied.
        ConversionError: Nothing can be replaced: torch's own way is the fastest for each convolution at these sizes.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 31, padding=15, groups=8))
        >>> made, certificate = accelerate_large_kernels(net, torch.randn(1, 3, 48, 48))
        >>> [type(layer).__name__ for layer in made], certificate.verdict
        (['Conv2d', 'LargeKernelConv2d'], 'exact')
    """
    if not isinstance(network, nn.Module):
        raise ArgumentError(must_be_a("network", "an nn.Module", network))
    named = {
        names[0]: module
        for module, names in names_by_module(network).items()
        if type(module) in _LAYERS
    }
    shapes, made = (
        input_shapes(network, read_arguments(network, images), named),
        copy_network(network),
    )
    layers = {name: _LAYERS[type(named[name])].of(made.get_submodule(name)) for name in shapes}
    chosen = [
        name
        for name, several in shapes.items()
        if any(_gains(layers[name], shape) for shape in several)
    ]
    if not chosen:
        raise ConversionError(
            "nothing to replace: at these sizes torch's own way is the fastest for each convolution"
        )
    made = graft(made, {made.get_submodule(name): layers[name] for name in chosen})
    return made, certify(network, made, images)


def _gains(layer: Any, shape: Sequence[int]) -> bool:
    weight = layer.weight  # and the shape may lack the batch
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        return False
    plan = layer.plan(shape if len(shape) == layer.dims + 2 else (1, *shape))
    ways = {(choice.path, choice.as_convolution) for choice in vars(plan).values()}
    return ways != {("default" if weight.is_contiguous() else "channels-last", False)}
