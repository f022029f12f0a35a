"""Whole networks: every convolution replaced by the attention layer that computes the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from convattn.convert.copies import copy_network, keep_random_state
from convattn.convert.layer.same_padding import SamePaddedAttention
from convattn.convert.layer.to_attention import conv_to_attention
from convattn.convert.network.grafting import graft
from convattn.convert.network.network_certificate import certify_network
from convattn.convert.network.running import read_arguments
from convattn.convert.network.survey import Found, survey
from convattn.errors import ArgumentError, UnknownNameError, must_be, must_be_a
from convattn.layers import Content, MergedValues, RelativeAttention
from convattn.records import Certificate, NetworkCertificate

__all__ = ["network_to_attention", "require_path"]

_PATHS = ("auto", "separable")


def network_to_attention(
    model: nn.Module,
    *,
    sharpness: float | None = None,
    impl: str = "auto",
    content: bool | Content = False,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
) -> tuple[nn.Module, NetworkCertificate]:
    """Makes a copy of a network in which every convolution is a relative-attention layer that computes the same.

    A module used in several places stays one module, tied parameters stay tied, and hooks, dtype, device, mode and
    `requires_grad` are kept; with a `sharpness` the new centres learn where the convolution's weight does. Of a
    convolution whose weight is computed (weight and spectral normalisation, pruning, weight standardisation) the
    result is converted; the layer has it as its own weight from there on, and the certificate says so.

    Copies of both are run in evaluation mode on copies of the images; hooks are called in these runs. Beside the
    network this takes about four times the memory of its parameters. What computes a convolution and is no module of
    one is not converted: where it calls a convolution of torch, the run shows it and the certificate names the module
    that did; where it is made of other operations (unfolding and a product, a Fourier transform) nothing is said.

    Source: `docs/theory.md` §3.

    Args:
        model: The network; it is not changed.
        sharpness: α > 0 of every head in 1/pixel²; None makes hard heads, with no attention off the taps.
        impl: "auto" (heads that are hard run as a convolution) or "separable" (softmax attention, axis by axis).
        content: Whether layers get scores that depend on the input, behind a gate that is closed exactly and can learn
            to open, or which terms these scores have; see `conv_to_attention`. While gates are closed this costs
            nothing without gradients; with them the weights of every query and key are made, 12·heads·queries·keys
            bytes for one image at a time: 258 GiB for a 3 × 3 convolution at 224 × 224, 0.4 MiB at 7 × 7. Convert the
            last stages only, by `include`; a note on each layer says what it takes.
        include: Names of the convolutions to convert, as patterns like "layer4.*"; all where None.
        exclude: Patterns of names to leave alone.
        images: What the network is measured on: images, or a tuple or a mapping of its arguments. None takes one
            standard normal image of the size in `model.default_cfg`, or else of 224 × 224.

    Returns:
        The new network and its certificate.

    Raises:
        UnsupportedModelError: Modules that cannot be converted, all of them named, or a network that cannot be copied.
        ConversionError: There is no convolution to convert, or the network does not run with attention layers in it or
            asks them for what only a convolution has.
        ArgumentError: An argument is out of range, a pattern matches nothing, or the network does not take the images.
        UnknownNameError: `impl` is neither of the two.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 7, 1, groups=1))
        >>> made, certificate = network_to_attention(net, images=torch.zeros(2, 3, 11, 13))
        >>> certificate.passed, [type(layer).__name__ for layer in made]
        (True, ['RelativeAttention2d', 'ReLU', 'RelativeAttention2d'])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    require_path(impl, content=bool(content))
    given = read_arguments(model, images)
    with keep_random_state(model):
        found, left = survey(model, include, exclude)
        made, found, certificates = _convert(model, found, sharpness, impl, content)
        return made, certify_network(model, made, found, left, certificates, impl=impl, given=given)


def require_path(impl: str, *, content: bool) -> None:
    """Refuses paths on which the layers of a network cannot be demanded.

    Args:
        impl: The path.
        content: Whether the layers get scores that depend on the input.

    Raises:
        UnknownNameError: There is no such path.
        ArgumentError: It is no path of layers with content.
    """
    if impl not in _PATHS:
        raise UnknownNameError("impl", impl, _PATHS)
    if content and impl != "auto":
        raise ArgumentError(must_be("impl", '"auto" with content, which is no softmax axis by axis', impl))


def _convert(
    model: nn.Module, found: Sequence[Found], sharpness: float | None, impl: str, content: bool | Content
) -> tuple[nn.Module, list[Found], dict[str, Certificate]]:
    """Copies a network with attention layers in the places of convolutions.

    Returns:
        The copy, the convolutions with all that there is to say of them, and their certificates by name.
    """
    made = copy_network(model)
    certificates: dict[str, Certificate] = {}
    replaced: dict[nn.Module, nn.Module] = {}
    places = dict(made.named_modules(remove_duplicate=False))
    ties = _Ties(model, found)
    for item in found:
        layer, certificates[item.names[0]] = conv_to_attention(
            item.plain.conv, sharpness=sharpness, content=content, impl=impl
        )
        old = places[item.names[0]]
        ties.keep(item, old, layer)
        _keep_state(old, item, layer)
        replaced[old] = SamePaddedAttention(layer) if item.plain.same else layer
    made = graft(made, replaced)
    told = [replace(item, notes=(*item.notes, *ties.broken(item))) for item in found]
    return made, told, certificates


class _Ties:
    """Parameters that several modules share."""

    def __init__(self, model: nn.Module, found: Sequence[Found]) -> None:
        """Lists who holds what."""
        self._owners: dict[nn.Parameter, list[str]] = {}
        for name, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    self._owners.setdefault(parameter, []).append(_parameter_name(name, key))
        self._layout = {
            _parameter_name(item.names[0], "weight"): _layout(item) for item in found if item.plain.own_weight
        }
        self._made: dict[tuple[nn.Parameter, Any], nn.Parameter] = {}

    def keep(self, item: Found, old: nn.Module, layer: RelativeAttention) -> None:
        """Gives a layer the parameters of the copied convolution that stay themselves, and those already made."""
        assert isinstance(layer.values, MergedValues)
        if item.plain.own_bias:
            layer.bias = old.bias  # type: ignore[assignment]
        if item.plain.own_weight:
            weight = item.module._parameters["weight"]
            assert weight is not None
            layer.values.weight = self._made.setdefault((weight, _layout(item)), layer.values.weight)

    def broken(self, item: Found) -> list[str]:
        """Tells with whom a convolution shared its weight, and the layer does not."""
        if not item.plain.own_weight:
            return []
        weight = item.module._parameters["weight"]
        assert weight is not None
        others = [o for o in self._owners[weight] if self._layout.get(o) != _layout(item)]
        return [f"it no longer shares its weight with {', '.join(others)}"] if others else []


def _parameter_name(module: str, key: str) -> str:
    """Returns the dotted name of a module's parameter; the network itself has the empty name."""
    return f"{module}.{key}" if module else key


def _layout(item: Found) -> tuple[type, int]:
    """Returns what makes two layers hold equal weights in equal form."""
    return type(item.plain.conv), item.plain.conv.groups


def _keep_state(old: nn.Module, item: Found, layer: RelativeAttention) -> None:
    """Sets mode and what learns as they are in the convolution."""
    layer.train(old.training)
    weight, bias = item.plain.conv.weight, item.plain.conv.bias
    layer.values.requires_grad_(weight.requires_grad)
    layer.encoding.requires_grad_(weight.requires_grad)
    if layer.gate is not None and layer.content is not None:
        layer.gate.requires_grad_(weight.requires_grad)
        layer.content.requires_grad_(weight.requires_grad)
    if layer.bias is not None and bias is not None:
        layer.bias.requires_grad_(bias.requires_grad)
