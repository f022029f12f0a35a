"""Fits converted convolutions, layer by layer, to the attention layers that they replace."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from convattn.convert.classes import CONVOLUTIONS
from convattn.convert.copies import copy_network
from convattn.convert.fit.layer import Fitted, fit_layers, require_batch
from convattn.convert.fit.least_squares import unknowns
from convattn.convert.network.modules import names_by_module
from convattn.errors import ArgumentError, must_be, must_be_a
from convattn.layers import RelativeAttention
from convattn.records import LeftAlone, Refinement

_MOST_UNKNOWNS = 8192
"""Unknowns per output channel beyond which the normal equations (0.5 GiB) are not made."""


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
    refined, teacher = copy_network(conv_model).eval(), copy_network(attention_model).eval()
    pairs, left_alone = _convolutions_to_fit(refined, teacher)
    if not pairs and not left_alone:
        raise ArgumentError(
            "conv_model must be the result of network_to_conv on attention_model, but none of its convolutions"
            " replaces an attention layer"
        )
    record = fit_layers(refined, teacher, pairs, images, _scores, ridge=ridge, argument="images", left_alone=left_alone)
    _restore_modes_and_buffers(refined, conv_model)
    return refined, record


def _require_arguments(conv_model: nn.Module, attention_model: nn.Module, images: Tensor, ridge: float) -> None:
    """Raises if an argument has another type, there are too few images, or a tensor has no values."""
    networks = (("conv_model", conv_model), ("attention_model", attention_model))
    for argument, model in networks:
        if not isinstance(model, nn.Module):
            raise ArgumentError(must_be_a(argument, "an nn.Module", model))
        held = [*model.named_parameters(), *model.named_buffers()]
        empty = next((name for name, tensor in held if tensor.is_meta), None)
        if empty is not None:
            raise ArgumentError(f"{argument} must have values, but its {empty} is on the meta device")
    require_batch("images", images)
    if isinstance(ridge, bool) or not (isinstance(ridge, int | float) and 0 < ridge < math.inf):
        raise ArgumentError(must_be("ridge", "a positive finite number", ridge))


def _restore_modes_and_buffers(refined: nn.Module, conv_model: nn.Module) -> None:
    """Restores modes and buffers, which the runs may have changed."""
    modes = {name: module.training for name, module in conv_model.named_modules()}
    for name, module in refined.named_modules():
        module.training = modes[name]
    with torch.no_grad():
        for name, buffer in conv_model.named_buffers():
            refined.get_buffer(name).copy_(buffer)


def _convolutions_to_fit(conv_model: nn.Module, teacher: nn.Module) -> tuple[dict[str, Fitted], list[LeftAlone]]:
    """Finds the convolutions to fit, each with the module whose output is its target, and those left alone."""
    pairs, left_alone = {}, []
    attention = dict(teacher.named_modules(remove_duplicate=False))
    for conv, names in names_by_module(conv_model).items():
        if not isinstance(attention.get(names[0]), RelativeAttention) or isinstance(conv, RelativeAttention):
            continue
        kind = type(conv).__name__
        if len(names) > 1:
            left_alone.append(LeftAlone(names[0], kind, "it is used in several places"))
        elif type(conv) not in CONVOLUTIONS.values():
            left_alone.append(LeftAlone(names[0], kind, f"{kind} is not fitted"))
        elif unknowns(conv) > _MOST_UNKNOWNS:  # type: ignore[arg-type]
            count = unknowns(conv)  # type: ignore[arg-type]
            reason = f"{count} unknowns per output channel are more than {_MOST_UNKNOWNS}"
            left_alone.append(LeftAlone(names[0], kind, reason))
        else:
            target = _target(names[0], conv_model, attention)
            pairs[names[0]] = Fitted(names[0], conv, target)  # type: ignore[arg-type]
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
