"""Fits the output matrices of layers with replaced heads to the layers as they were, on images without labels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from convattn.adapters.replacement.attention import ConvolvedAttention
from convattn.adapters.replacement.trial import first_output
from convattn.convert.copies import copy_network
from convattn.convert.fit.layer import Fitted, fit_layers, require_batch
from convattn.convert.network.running import Arguments
from convattn.errors import ArgumentError
from convattn.records import LeftAlone, Refinement

_RIDGE = 1e-3
"""Penalty on changes of the weights, as a share of the mean square of a layer's inputs."""


def refit_outputs(model: nn.Module, made: nn.Module, names: Sequence[str], images: Tensor) -> Refinement:
    """Fits W_out and its bias, layer by layer, so that the layer's output is nearest to that of the layer as it was.

    From the first layer to the last, each W_out moves to the minimum of `Σ ‖old output − new output‖² + μ‖change‖²`,
    given the heads that average and those that attend. Each layer sees the output of the layers that are already
    fitted. Every fifth image is held out, and a fit that does not help on those is undone.

    Args:
        model: The network as it was.
        made: The network with replaced heads, whose output matrices are changed in place.
        names: Names of the layers with replaced heads.
        images: At least 5 images, prepared as the network expects them.

    Returns:
        How much each fit helps on the held-out images, and which layers hold no output matrix.

    Raises:
        ArgumentError: The images do not fit the network, are too few, or no layer holds an output matrix.
    """
    require_batch("refit", images)
    teacher, student = copy_network(model).eval(), copy_network(made).eval()
    found = {name: _output(student.get_submodule(name)) for name in names}
    outputs = {output: name for name, output in found.items() if output is not None}
    left = [_left(name, student.get_submodule(name)) for name, output in found.items() if output is None]
    if not outputs:
        raise ArgumentError(f"refit must be None, because {left[0].summary()}")
    layers = {
        place: Fitted(outputs[part], part, teacher.get_submodule(outputs[part]))
        for place, part in student.named_modules()
        if isinstance(part, nn.Linear) and part in outputs
    }
    record = fit_layers(student, teacher, layers, images, _first, ridge=_RIDGE, argument="refit", left_alone=left)
    with torch.no_grad():
        for output, name in outputs.items():
            kept = _output(made.get_submodule(name))
            assert kept is not None
            kept.load_state_dict(output.state_dict())
    return record


def _output(layer: nn.Module) -> nn.Linear | None:
    """Returns the output matrix of a layer with replaced heads; None if it holds none."""
    heads = [part for part in layer.modules() if isinstance(part, ConvolvedAttention)]
    return heads[0].output if heads else None


def _left(name: str, layer: nn.Module) -> LeftAlone:
    ours = not any(isinstance(part, ConvolvedAttention) for part in layer.modules())
    reason = "layers of this library are not refitted" if ours else "another module applies its output matrix"
    return LeftAlone(name, type(layer).__name__, reason)


def _first(network: nn.Module, images: Tensor) -> Tensor:
    return first_output(network, Arguments((images,), {}, "the images"))
