"""Fits one layer of a network to the layer that it replaces, and compares the networks, on images without labels."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.classes import Convolution
from convattn.convert.fit.least_squares import NormalEquations
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.records import RefinedLayer

_BATCH = 16
_HELD_OUT = 5
"""One of this many images is held out."""


def require_batch(name: str, images: object) -> None:
    """Raises ArgumentError unless `images`, the argument `name`, are a tensor of enough images with values."""
    if not isinstance(images, Tensor):
        raise ArgumentError(must_be_a(name, "a tensor", images))
    if images.is_meta:
        raise ArgumentError(f"{name} must have values, but they are on the meta device")
    if images.ndim == 0 or len(images) < _HELD_OUT:
        raise ArgumentError(must_be(name, f"a batch of at least {_HELD_OUT}", tuple(images.shape)))


def split(images: Tensor) -> tuple[Tensor, Tensor]:
    """Splits images into those to fit on and those held out, every fifth."""
    held = (torch.arange(len(images)) % _HELD_OUT == _HELD_OUT - 1).to(images.device)
    return images[~held], images[held]


def fit_layer(
    model: nn.Module,
    teacher: nn.Module,
    name: str,
    layer: Convolution | nn.Linear,
    target: nn.Module,
    fit: Tensor,
    rest: Tensor,
    ridge: float,
) -> RefinedLayer:
    """Fits a layer of `model` to the output of a module of `teacher`, and undoes the fit if it does not help.

    Args:
        model: The network of the layer; it must be in evaluation mode, as the teacher.
        teacher: The network whose module's outputs are the target.
        name: What the record calls the layer.
        layer: The layer to fit.
        target: The module of the teacher.
        fit: Images to fit on.
        rest: Images on which the fit must help.
        ridge: Penalty on changes of the weights, as in `NormalEquations.solve`.

    Returns:
        The layer's errors on `rest` before and after.
    """
    equations, old = NormalEquations(layer), copy.deepcopy(layer.state_dict())
    before, scale = _distance(_outputs_and_targets(model, teacher, layer, target, rest))
    for x, made, wanted in _outputs_and_targets(model, teacher, layer, target, fit):
        equations.add(x, wanted - made)
    equations.solve(ridge)
    after, _ = _distance(_outputs_and_targets(model, teacher, layer, target, rest))
    kept = after < before
    if not kept:
        layer.load_state_dict(old)
    return RefinedLayer(name, before, after, scale, kept)


def end_to_end(
    model: nn.Module, teacher: nn.Module, images: Tensor, output: Callable[[nn.Module, Tensor], Tensor]
) -> tuple[float, float, int | None]:
    """Returns the root mean squares of the networks' difference and of the teacher's output, and top-1 changes.

    `output` runs a network on images. Top-1 changes are None unless outputs are rows of scores.
    """
    with torch.no_grad():
        pairs = [(output(model, batch.clone()), output(teacher, batch.clone())) for batch in images.split(_BATCH)]
    made, wanted = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    _require_one_shape("both networks", made, wanted)
    difference = (made.double() - wanted.double()).square().mean().sqrt().item()
    changed = int((made.argmax(1) != wanted.argmax(1)).sum()) if made.ndim == 2 else None
    return difference, wanted.double().square().mean().sqrt().item(), changed


def _outputs_and_targets(
    model: nn.Module, teacher: nn.Module, layer: nn.Module, target: nn.Module, images: Tensor
) -> Iterator[tuple[Tensor, Float[Tensor, "batch *_"], Float[Tensor, "batch *_"]]]:
    """Yields, batch by batch, a layer's inputs, its outputs and its target outputs, both outputs in float64."""
    met: dict[str, Tensor] = {}

    def keep(what: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            met[what] = (output[0] if isinstance(output, tuple) else output).detach()
            if inputs:
                met[f"{what} input"] = inputs[0].detach()

        return hook

    handles = [layer.register_forward_hook(keep("made")), target.register_forward_hook(keep("wanted"))]
    try:
        with torch.no_grad():
            for batch in images.split(_BATCH):
                model(batch.clone())  # a network may change what it is given
                teacher(batch.clone())
                made, wanted = met["made"].double(), met["wanted"].double()
                if isinstance(target, nn.Linear) and not isinstance(layer, nn.Linear):
                    wanted = wanted.movedim(-1, 1)
                _require_one_shape("two layers", made, wanted)
                yield met["made input"], made, wanted
    finally:
        for handle in handles:
            handle.remove()


def _require_one_shape(whose: str, made: Tensor, wanted: Tensor) -> None:
    if made.shape != wanted.shape:
        shapes = f"{tuple(made.shape)} and {tuple(wanted.shape)}"
        raise ShapeError(f"the outputs of {whose} must have the same shape, but have {shapes}")


def _distance(seen: Iterator[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, float]:
    """Returns the root mean squares of the error and of the target outputs."""
    squares, wanted_squares, count = 0.0, 0.0, 0
    for _, made, wanted in seen:
        squares += (made - wanted).square().sum().item()
        wanted_squares += wanted.square().sum().item()
        count += wanted.numel()
    return (squares / count) ** 0.5, (wanted_squares / count) ** 0.5
