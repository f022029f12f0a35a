"""A network as it was before any training: every weight drawn anew by the rules of the classes that hold it."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from convattn.convert.network_runs import copy_network
from convattn.errors import UnsupportedModelError
from convattn.layers import NormalisedConv, RelativeAttention
from convattn.networks.saved_layers import describe_layer, rebuild_layer
from convattn.random_numbers import keep_random_state, seed_torch
from convattn.structure import full_name

_TRANSFORMERS = "transformers.modeling_utils.PreTrainedModel"
_INITIALISED = "_is_hf_initialized"
"""The base of transformers' networks, and the mark of weights that it does not draw again."""

_TORCHVISION = "torchvision.models"
_SMALL = (0.0, 0.02)
_STARTS: dict[str, tuple[float, float]] = {
    f"{_TORCHVISION}.vision_transformer.VisionTransformer.class_token": (0, 0),
    f"{_TORCHVISION}.vision_transformer.Encoder.pos_embedding": _SMALL,
    f"{_TORCHVISION}.swin_transformer.ShiftedWindowAttention.relative_position_bias_table": _SMALL,
    f"{_TORCHVISION}.swin_transformer.ShiftedWindowAttentionV2.logit_scale": (math.log(10), 0),
    f"{_TORCHVISION}.maxvit.RelativePositionalMultiHeadAttention.relative_position_bias_table": _SMALL,
    "timm.models.convit.ConVit.cls_token": _SMALL,
    "timm.models.convit.ConVit.pos_embed": _SMALL,
    "timm.models.convit.GPSA.gating_param": (1, 0),
    "timm.models.pit.PoolingVisionTransformer.cls_token": _SMALL,
    "timm.models.pit.PoolingVisionTransformer.pos_embed": _SMALL,
}
"""Mean and deviation of what classes draw as they are made, for parameters that none of their methods draws."""


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copies a network and draws its weights anew, as its classes do.

    A layer draws its weights by `reset_parameters`, one of this library is built again, and networks draw those of
    their parts by `_init_weights`, `init_weights` and, as ConViT, `local_init`. Buffers stay, unless a rule sets them.
    UnsupportedModelError is raised if no rule draws a parameter, or one fails.
    """
    network = copy_network(model)
    with keep_random_state(network), torch.no_grad():
        seed_torch(network, seed)
        for parameter in network.parameters():
            vars(parameter).pop(_INITIALISED, None)
            if parameter.is_floating_point():
                parameter.fill_(torch.nan)  # which is left where no rule draws
        try:
            _draw(network)
        except Exception as error:  # a rule of a foreign class may fail in any way
            raise UnsupportedModelError(f"drawing its weights anew raised {error!r}") from error
    for name, parameter in network.named_parameters():
        if not parameter.is_floating_point() or bool(parameter.isnan().any()):
            holder = network.get_submodule(name.rpartition(".")[0])
            raise UnsupportedModelError(
                f"nothing says how {name} starts; a method `reset_parameters` of {type(holder).__name__} would"
            )
    return network


def _draw(network: nn.Module) -> None:
    """Draws all weights for which there is a rule, those of parts before those of what is around them."""
    inner_first = list(network.modules())[::-1]
    for part in inner_first:
        if isinstance(part, RelativeAttention | NormalisedConv):
            with suppress(UnsupportedModelError):  # of an encoding that is not registered
                part.load_state_dict(rebuild_layer(describe_layer(part)).state_dict())
        for rule in _rules(part, ("reset_parameters", "_reset_parameters")):
            rule()
        for name, parameter in part.named_parameters(recurse=False):
            start = _STARTS.get(f"{full_name(type(part))}.{name}")
            if start is not None:
                parameter.normal_(*start)
    kinds = set(map(type, inner_first))
    of_transformers = {kind for kind in kinds if _TRANSFORMERS in map(full_name, kind.__mro__)}
    drawn: set[nn.Module] = set()
    for part in inner_first:
        for rule in _rules(part, ("_init_weights",), part):
            inside = [one for one in part.modules() if one not in drawn]
            for one in reversed(inside):
                rule(one)
            drawn.update(inside)
        if (
            type(part) not in of_transformers
        ):  # whose own method changes functions of torch while it runs
            for rule in _rules(part, ("_init_weights", "init_weights")):
                rule()
    for part in inner_first:
        for rule in _rules(part, ("local_init",)):
            rule()


def _rules(
    part: nn.Module, names: Sequence[str], *arguments: nn.Module
) -> Iterator[Callable[..., Any]]:
    """Yields the methods with these names that can be called with these arguments."""
    for name in names:
        method = getattr(part, name, None)
        if not callable(method):
            continue
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError:
            continue
        yield method
