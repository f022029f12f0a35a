"""Fits layers of a network, one after the other, to those that they replace, on images without labels."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.classes import Convolution
from convattn.convert.fit.least_squares import NormalEquations
from convattn.convert.network.running import Arguments, run, shapes_met
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.functional.autocast import without_autocast
from convattn.records import LeftAlone, RefinedLayer, Refinement

_BATCH = 16
_HELD_OUT = 5
"""One of this many images is held out."""

_NOT_FINITE = "{} must give finite outputs in both networks, but some are not finite"


def require_batch(name: str, images: object) -> None:
    """Raises ArgumentError unless `images`, the argument `name`, are a tensor of enough images with values."""
    if not isinstance(images, Tensor):
        raise ArgumentError(must_be_a(name, "a tensor", images))
    if images.is_meta:
        raise ArgumentError(f"{name} must have values, but they are on the meta device")
    if images.ndim == 0 or len(images) < _HELD_OUT:
        raise ArgumentError(must_be(name, f"a batch of at least {_HELD_OUT}", tuple(images.shape)))


@dataclass(frozen=True)
class Fitted:
    """A layer to fit, and the module whose output is its target."""

    name: str  # What the record calls it
    layer: Convolution | nn.Linear
    target: nn.Module


def fit_layers(
    model: nn.Module,
    teacher: nn.Module,
    layers: Mapping[str, Fitted],
    images: Tensor,
    output: Callable[[nn.Module, Tensor], Tensor],
    *,
    ridge: float,
    argument: str,
    left_alone: Sequence[LeftAlone],
) -> Refinement:
    """Fits layers of `model` in the order in which they run, each to the output of a module of `teacher`.

    Each layer sees the output of those that are already fitted. Every fifth image is held out; a fit that does not help
    on those is undone.

    Args:
        model: The network of the layers, in evaluation mode; they are changed in place.
        teacher: The network of the targets, in evaluation mode.
        layers: The layers by their names in `model`.
        images: Images that `require_batch` takes.
        output: Runs a network on images.
        ridge: Penalty on changes of the weights, as in `NormalEquations.solve`.
        argument: What the caller calls the images, for errors.
        left_alone: For the record: what is not fitted.

    Returns:
        Errors of the layers and of the network on the held-out images, before and after.

    Raises:
        ArgumentError: A network does not take the images, or gives numbers that are not finite.
    """
    held = (torch.arange(len(images)) % _HELD_OUT == _HELD_OUT - 1).to(images.device)
    fit, rest = images[~held], images[held]
    with without_autocast(images.device):  # it would go on with the weights before a fit
        _require_fit(argument, rest[:1], model, teacher)
        before = _end_to_end(model, teacher, rest, output)
        if not math.isfinite(before[0]):
            raise ArgumentError(_NOT_FINITE.format(argument))
        order = shapes_met(model, Arguments((fit[:1],), {}, "one of the images"), layers)
        fitted = [_fit_layer(model, teacher, layers[place], fit, rest, ridge, argument) for place in order]
        after = _end_to_end(model, teacher, rest, output)
    return Refinement(
        layers=tuple(fitted),
        left_alone=tuple(left_alone),
        ridge=float(ridge),
        fitted=len(fit),
        held_out=len(rest),
        before=before[0],
        after=after[0],
        scale=before[1],
        top1_changed_before=before[2],
        top1_changed_after=after[2],
    )


def _require_fit(argument: str, image: Tensor, *networks: nn.Module) -> None:
    try:
        for network in networks:
            run(network, Arguments((image,), {}, "one of the images"))
    except Exception as error:  # foreign networks may fail in any way
        raise ArgumentError(
            f"{argument} must fit both networks, but one of them raised {type(error).__name__}: {error}"
        ) from error


def _fit_layer(
    model: nn.Module, teacher: nn.Module, fitted: Fitted, fit: Tensor, rest: Tensor, ridge: float, argument: str
) -> RefinedLayer:
    """Fits one layer, and undoes the fit if it does not help."""
    layer, target = fitted.layer, fitted.target
    equations, old = NormalEquations(layer), copy.deepcopy(layer.state_dict())
    before, scale = _distance(_outputs_and_targets(model, teacher, layer, target, rest))
    for x, made, wanted in _outputs_and_targets(model, teacher, layer, target, fit):
        equations.add(x, wanted - made)
    if not equations.finite:
        raise ArgumentError(_NOT_FINITE.format(argument))
    equations.solve(ridge)
    after, _ = _distance(_outputs_and_targets(model, teacher, layer, target, rest))
    kept = after < before
    if not kept:
        layer.load_state_dict(old)
    return RefinedLayer(fitted.name, before, after, scale, kept)


def _end_to_end(
    model: nn.Module, teacher: nn.Module, images: Tensor, output: Callable[[nn.Module, Tensor], Tensor]
) -> tuple[float, float, int | None]:
    """Returns the root mean squares of the networks' difference and of the teacher's output, and top-1 changes."""
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
