"""Fits converted convolutions to the attention that they replace, by least squares."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.certificate import LeftAlone
from convattn.convert.surgery import (
    Arguments,
    copy_network,
    find_empty,
    input_shapes,
    names_by_module,
    run,
    tensors,
)
from convattn.convert.taps import CONVOLUTIONS, Convolution, read_taps, tap_pixels
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.functional.torch_modes import without_autocast
from convattn.layers import RelativeAttention
from convattn.record import Record

_BATCH = 16
_HELD_OUT = 5
"""Images that run at once, and how many images there are for each one that is held out."""

_MOST_UNKNOWNS = 8192
"""Unknowns per output channel beyond which the normal equations (0.5 GiB) are not made."""

_NOT_FINITE = "{} must give finite outputs in both networks, but some are not finite"


@dataclass(frozen=True)
class RefinedLayer(Record):
    """One convolution fitted to the attention layer that it replaces."""

    name: str  # Where it stands in the network
    before: float  # Root mean square of its output's difference to the attention layer's, on images held out of the fit
    after: float  # The same afterwards
    scale: float  # Root mean square of the attention layer's output there
    kept: bool  # Whether the fit was kept: it is if it helped on the images held out


@dataclass(frozen=True)
class Refinement(Record):
    """Results of a refinement, on images that were not used for fitting."""

    layers: tuple[RefinedLayer, ...]  # The convolutions, in the order in which they compute
    left_alone: tuple[LeftAlone, ...]  # The convolutions that were not fitted
    ridge: float  # Share of the mean square of the inputs that holds weights where they were
    fitted: int  # Number of images for the fits
    held_out: int  # Number of images for the numbers here
    before: float  # Root mean square of the whole network's output difference, before
    after: float  # The same afterwards
    scale: float  # Root mean square of the attention network's output
    # Images held out whose largest output differs from that with attention; None if outputs are not rows of scores
    top1_changed_before: int | None
    top1_changed_after: int | None  # The same afterwards

    def summary(self) -> str:
        """Returns the refinement in a few lines of plain text."""
        lines = [
            f"refined on {self.fitted} images, measured on {self.held_out} others (root mean squares)",
            f"  end to end      {self.before:.3g} before, {self.after:.3g} after, of {self.scale:.3g}",
        ]
        if self.top1_changed_before is not None:
            lines.append(
                f"  top-1 changed   {self.top1_changed_before} before, {self.top1_changed_after} after"
            )
        for layer in self.layers:
            kept = "" if layer.kept else ", not kept"
            numbers = f"{layer.before:.3g} before, {layer.after:.3g} after, of {layer.scale:.3g}"
            lines.append(f"  layer           {layer.name}: {numbers}{kept}")
        lines += [f"  left alone      {reason}" for reason in LeftAlone.in_words(self.left_alone)]
        return "\n".join(lines)


def unknowns(layer: Convolution | nn.Linear) -> int:
    """Returns how many numbers are fitted at once: the weights of one output channel and its bias."""
    return layer.weight[0].numel() + (layer.bias is not None)


class NormalEquations:
    """The sums XᵀX and XᵀR of a layer over batches, where X are its inputs and R the errors of its outputs.

    The inputs of a convolution are its patches; a linear map takes and gives channels last.
    """

    def __init__(self, layer: Convolution | nn.Linear) -> None:
        """Starts with sums of zero; only `solve` changes the layer."""
        self.layer, size = layer, unknowns(layer)
        self._groups, weight = 1 if isinstance(layer, nn.Linear) else layer.groups, layer.weight
        zeros = torch.zeros(self._groups, size, size, dtype=torch.float64, device=weight.device)
        self._squares, self._products = (
            zeros,
            zeros.new_zeros(self._groups, size, len(weight) // self._groups),
        )

    def add(self, x: Float[Tensor, "batch *_"], errors: Float[Tensor, "batch *_"]) -> None:
        """Adds a batch of inputs, and the target outputs minus the layer's, in float64."""
        if isinstance(self.layer, nn.Linear):
            features, wanted = x.double().flatten(0, -2)[None], errors.flatten(0, -2)[None]
        else:
            features = _patches(self.layer, x.double())
            wanted = rearrange(
                errors, "batch (groups out) ... -> groups (batch ...) out", groups=self._groups
            )
        if self.layer.bias is not None:
            features = torch.cat([features, features.new_ones(*features.shape[:2], 1)], dim=-1)
        self._squares += features.mT @ features
        self._products += features.mT @ wanted

    @property
    def finite(self) -> bool:
        """Whether all sums are finite."""
        return bool(self._squares.isfinite().all() and self._products.isfinite().all())

    def solve(self, ridge: float) -> None:
        """Moves weights and bias to the minimum of ‖R − X ΔW‖² + μ‖ΔW‖², μ = ridge · trace(XᵀX) / unknowns."""
        layer, squares = self.layer, self._squares
        mean = (
            squares.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(torch.float64).tiny)
        )
        eye = torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
        factor = torch.linalg.cholesky(squares + (ridge * mean)[:, None, None] * eye)
        change = rearrange(
            torch.cholesky_solve(self._products, factor),
            "groups unknowns out -> (groups out) unknowns",
        )
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.copy_(layer.bias.double() + change[:, -1])
                change = change[:, :-1]
            layer.weight.copy_(layer.weight.double() + change.reshape(layer.weight.shape))


def _patches(conv: Convolution, x: Tensor) -> Float[Tensor, "groups pixels weights"]:
    """Lists the input numbers that each output pixel depends on, by channel and tap."""
    seen = torch.stack(list(tap_pixels(read_taps(conv), x)), dim=2)
    return rearrange(
        seen.flatten(3),
        "batch (groups i) taps pixels -> groups (batch pixels) (i taps)",
        groups=conv.groups,
    )


def require_batch(name: str, images: object) -> None:
    """Raises ArgumentError unless `images`, the argument `name`, are a tensor of enough images with values."""
    if not isinstance(images, Tensor):
        raise ArgumentError(must_be_a(name, "a tensor", images))
    if images.is_meta:
        raise ArgumentError(f"{name} must have values, but they are on the meta device")
    if images.ndim == 0 or len(images) < _HELD_OUT:
        raise ArgumentError(must_be(name, f"a batch of at least {_HELD_OUT}", tuple(images.shape)))


@dataclass(frozen=True)
class LayerToFit:
    """A layer to fit, and the module whose output is its target."""

    name: str  # What the record calls it
    layer: Convolution | nn.Linear
    target: nn.Module


def fit_layers(
    model: nn.Module,
    teacher: nn.Module,
    layers: Mapping[str, LayerToFit],
    images: Tensor,
    output: Callable[[nn.Module, Tensor], Tensor],
    *,
    ridge: float,
    argument: str,
    left_alone: Sequence[LeftAlone],
) -> Refinement:
    """Fits layers of `model` in the order in which they run, each to the output of a module of `teacher`.

    Every fifth image is held out; a fit that does not help on those is undone. Both networks are in evaluation mode;
    `layers` holds the layers by their names in `model`, which are changed in place. `output` runs a network on images,
    `argument` is what the caller calls them, and `left_alone` is for the record. Raises ArgumentError if a network does
    not take the images, or gives numbers that are not finite.
    """
    held = (torch.arange(len(images)) % _HELD_OUT == _HELD_OUT - 1).to(images.device)
    fit, rest = images[~held], images[held]
    with without_autocast(images.device):  # it would go on with the weights before a fit
        try:
            for network in (model, teacher):
                run(network, Arguments((rest[:1],), {}, "one of the images"))
        except Exception as error:  # foreign networks may fail in any way
            told = f"{type(error).__name__}: {error}"
            raise ArgumentError(
                f"{argument} must fit both networks, but one of them raised {told}"
            ) from error
        before = _end_to_end(model, teacher, rest, output)
        if not math.isfinite(before[0]):
            raise ArgumentError(_NOT_FINITE.format(argument))
        order = input_shapes(model, Arguments((fit[:1],), {}, "one of the images"), layers)
        fitted = [
            _fit_layer(model, teacher, layers[place], fit, rest, ridge, argument) for place in order
        ]
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


def _fit_layer(
    model: nn.Module,
    teacher: nn.Module,
    fitted: LayerToFit,
    fit: Tensor,
    rest: Tensor,
    ridge: float,
    argument: str,
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
    model: nn.Module,
    teacher: nn.Module,
    images: Tensor,
    output: Callable[[nn.Module, Tensor], Tensor],
) -> tuple[float, float, int | None]:
    """Returns the root mean squares of the networks' difference and of the teacher's output, and top-1 changes."""
    with torch.no_grad():
        pairs = [
            (output(model, batch.clone()), output(teacher, batch.clone()))
            for batch in images.split(_BATCH)
        ]
    made, wanted = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    _require_one_shape("both networks", made, wanted)
    difference = (made.double() - wanted.double()).square().mean().sqrt().item()
    changed = int((made.argmax(1) != wanted.argmax(1)).sum()) if made.ndim == 2 else None
    return difference, wanted.double().square().mean().sqrt().item(), changed


def _outputs_and_targets(
    model: nn.Module, teacher: nn.Module, layer: nn.Module, target: nn.Module, images: Tensor
) -> Iterator[tuple[Tensor, Float[Tensor, "batch *_"], Float[Tensor, "batch *_"]]]:
    """Yields for each batch and call a layer's inputs, its outputs and its target outputs, both outputs in float64."""
    recorded: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    channels_last = isinstance(target, nn.Linear) and not isinstance(layer, nn.Linear)

    def record(
        module: nn.Module, given: Any, named: Any, output: Any
    ) -> None:  # what a network may change later
        x, y = next(tensors((given, named))), next(tensors(output))
        recorded[module].append((x.clone(), y.to(torch.float64, copy=True)))

    handles = [part.register_forward_hook(record, with_kwargs=True) for part in (layer, target)]
    try:
        with torch.no_grad():
            for batch in images.split(_BATCH):
                recorded |= {layer: [], target: []}
                for network in (model, teacher):
                    network(batch.clone())
                first, second = recorded[layer], recorded[target]
                if len(first) != len(second):
                    raise ArgumentError(
                        f"a layer runs {len(first)} times in one network, {len(second)} in the other"
                    )
                for (x, made), (_, y) in zip(first, second, strict=True):
                    wanted = y.movedim(-1, 1) if channels_last else y
                    _require_one_shape("two layers", made, wanted)
                    yield x, made, wanted
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


def refine(
    conv_model: nn.Module, attention_model: nn.Module, images: Tensor, *, ridge: float = 1e-3
) -> tuple[nn.Module, Refinement]:
    """Fits the convolutions of a converted network to the attention layers that they replaced, by least squares.

    From the first layer to the last, the weights and the bias of a convolution move to the minimum of
    `Σ ‖attention's output − convolution's output‖² + μ‖change‖²`. Each convolution sees the output of the layers that
    are already fitted, so it also corrects their errors. Every fifth image is held out, and a fit that does not help on
    those is undone. No labels are needed.

    Args:
        conv_model: The network that `network_to_conv` returned; it is not changed.
        attention_model: The network that it was made from; it is not changed.
        images: At least 5 images, better a few hundred, prepared as the networks expect them.
        ridge: Ridge penalty > 0 on changes of the weights, as a share of the mean square of a layer's inputs.

    Returns:
        A new network, and a record of how much each fit helps on the held-out images.

    Raises:
        ArgumentError: There are too few images or they do not fit the networks; a network has tensors without values or
            does not return one tensor of finite numbers; `ridge` is out of range; or no convolution of `conv_model`
            replaces an attention layer. ShapeError if the outputs of two layers differ in shape.

    Example:
        >>> from convattn import AttentionNet, network_to_conv
        >>> attention = AttentionNet(width=8, depth=1, heads=4, ffn=8).eval()
        >>> images = torch.randn(20, 3, 16, 16)
        >>> conv, _ = network_to_conv(attention, kernel_size=5, images=images)
        >>> refined, record = refine(conv, attention, images)
        >>> record.layers[0].name, record.fitted, record.held_out
        ('blocks.0.mixer', 16, 4)
    """
    _require_arguments(conv_model, attention_model, images, ridge)
    refined, teacher = copy_network(conv_model), copy_network(attention_model).eval()
    fitted = copy_network(refined).eval()  # its runs may change its buffers
    pairs, left_alone = _convolutions_to_fit(fitted, teacher)
    if not pairs and not left_alone:
        why = "none of its convolutions replaces an attention layer"
        raise ArgumentError(
            f"conv_model must be the result of network_to_conv on attention_model, but {why}"
        )
    record = fit_layers(
        fitted,
        teacher,
        pairs,
        images,
        _scores,
        ridge=ridge,
        argument="images",
        left_alone=left_alone,
    )
    for name, pair in pairs.items():
        refined.get_submodule(name).load_state_dict(pair.layer.state_dict())
    return refined, record


def _require_arguments(
    conv_model: nn.Module, attention_model: nn.Module, images: Tensor, ridge: float
) -> None:
    """Raises if an argument has another type, there are too few images, or a tensor has no values."""
    for argument, model in (("conv_model", conv_model), ("attention_model", attention_model)):
        if not isinstance(model, nn.Module):
            raise ArgumentError(must_be_a(argument, "an nn.Module", model))
        if (empty := find_empty(model)) is not None:
            raise ArgumentError(
                f"{argument} must have values, but its {empty} is on the meta device"
            )
    require_batch("images", images)
    if isinstance(ridge, bool) or not (isinstance(ridge, int | float) and 0 < ridge < math.inf):
        raise ArgumentError(must_be("ridge", "a positive finite number", ridge))


def _convolutions_to_fit(
    conv_model: nn.Module, teacher: nn.Module
) -> tuple[dict[str, LayerToFit], list[LeftAlone]]:
    """Finds the convolutions to fit, each with the module whose output is its target, and those left alone."""
    pairs, left_alone = {}, []
    attention = dict(teacher.named_modules(remove_duplicate=False))
    for conv, names in names_by_module(conv_model).items():
        if not isinstance(attention.get(names[0]), RelativeAttention) or isinstance(
            conv, RelativeAttention
        ):
            continue
        kind = type(conv).__name__
        if len(names) > 1:
            reason = "it is used in several places"
        elif not isinstance(conv, Convolution) or type(conv) not in CONVOLUTIONS.values():
            reason = f"{kind} is not fitted"
        elif unknowns(conv) > _MOST_UNKNOWNS:
            reason = f"{unknowns(conv)} unknowns per output channel are more than {_MOST_UNKNOWNS}"
        else:
            pairs[names[0]] = LayerToFit(names[0], conv, _target(names[0], conv_model, attention))
            continue
        left_alone.append(LeftAlone(names[0], kind, reason))
    return pairs, left_alone


def _target(name: str, conv_model: nn.Module, attention: dict[str, nn.Module]) -> nn.Module:
    """Returns the attention layer, or the module after it that was folded into the convolution."""
    parent, _, child = name.rpartition(".")
    siblings = list(conv_model.get_submodule(parent)._modules.items())
    follower = next((pair for last, pair in pairwise(siblings) if last[0] == child), None)
    if follower is not None and type(follower[1]) is nn.Identity:
        folded = attention.get(f"{parent}.{follower[0]}" if parent else follower[0])
        if folded is not None and not isinstance(folded, nn.Identity):
            return folded
    return attention[name]


def _scores(network: nn.Module, images: Tensor) -> Tensor:
    """Runs a network that must return one tensor."""
    y = network(images)
    if not isinstance(y, Tensor):
        raise ArgumentError("conv_model must be a network that returns one tensor")
    return y
