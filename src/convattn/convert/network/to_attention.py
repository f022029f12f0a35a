"""From a network of convolutions to a network of attention layers that computes the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from convattn.convert.certificate.network import CLOSE, certify_network, require_tolerance, shorten
from convattn.convert.copies import copy_module, copy_network, keep_random_state
from convattn.convert.layer.same_padding import SamePaddedAttention
from convattn.convert.layer.to_attention import conv_to_attention
from convattn.convert.network.comparison import compare_networks
from convattn.convert.network.modules import graft
from convattn.convert.network.running import Arguments, read_arguments
from convattn.convert.network.survey import Found, find_convolutions
from convattn.convert.network.watch import Watch
from convattn.errors import ArgumentError, UnknownNameError, must_be, must_be_a
from convattn.layers import Content, MergedValues, RelativeAttention
from convattn.records import Certificate, LeftAlone, NetworkCertificate

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
    tolerance: float | None = CLOSE,
) -> tuple[nn.Module, NetworkCertificate]:
    """Copies a network and replaces every convolution by a relative-attention layer that computes the same.

    A module used in several places stays one module, tied parameters stay tied, and hooks, dtype, device, mode and
    `requires_grad` are kept. With `sharpness`, the new centres are trained if the convolution's weight is. If a weight
    is computed (weight or spectral normalisation, pruning, weight standardisation), its present value becomes the
    layer's own weight, and the certificate says so.

    To measure the result, copies of both networks run in evaluation mode on copies of the images; this calls hooks, and
    takes about four times the memory of the network's parameters. Convolutions that are not modules are not converted.
    If the network calls a torch convolution as a function, the certificate names the module that did. Convolutions made
    of other operations (unfolding and a product, a Fourier transform) are not detected.

    Source: `docs/theory.md` §3.

    Args:
        model: The network; it is not changed.
        sharpness: α > 0 of every head in 1/pixel²; None makes hard heads, with no attention off the taps.
        impl: "auto" (hard heads run as a convolution) or "separable" (softmax attention, axis by axis).
        content: Whether layers also get gated scores that depend on the input, or which terms these have; see
            `conv_to_attention`. While the gates are closed this costs nothing without gradients. With gradients, or
            with open gates, the weights of all pairs of query and key are computed, in little memory but in time
            that grows with the square of the pixels: for nine heads on one core milliseconds at 7 × 7, seconds at
            56 × 56 and a minute at 112 × 112. So convert the last stages only, with `include`.
        include: Names of the convolutions to convert, as patterns like "layer4.*"; None means all.
        exclude: Name patterns of convolutions to leave alone.
        images: What the network is measured on: images, or a tuple or mapping of its arguments. None draws one standard
            normal image of the size in `model.default_cfg`, or else 224 × 224.
        tolerance: Largest difference that the certificate calls close, as a share in (0, 1) of the largest output, if
            no prediction changes on the images given. None calls nothing close, as if no images were given.

    Returns:
        The new network and its certificate.

    Raises:
        UnsupportedModelError: Some modules cannot be converted (the message names them all), or the network cannot be
            copied.
        ConversionError: There is no convolution to convert, or the network does not run with attention layers in it.
        ArgumentError: An argument is out of range, a pattern matches nothing, or the images do not fit the network.
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
    require_tolerance(tolerance)
    given = read_arguments(model, images)
    with keep_random_state(model):
        found, left = find_convolutions(model, include, exclude)
        made, found, certificates = _replace_convolutions(model, found, sharpness, impl, content)
        limit = None if images is None else tolerance
        return made, _measure(model, made, found, left, certificates, (impl, limit), given)


def require_path(impl: str, *, content: bool) -> None:
    """Raises if the layers of a network, with or without content, cannot compute on the path `impl`."""
    if impl not in _PATHS:
        raise UnknownNameError("impl", impl, _PATHS)
    if content and impl != "auto":
        raise ArgumentError(must_be("impl", '"auto" with content, whose softmax cannot be taken axis by axis', impl))


def _replace_convolutions(
    model: nn.Module, found: Sequence[Found], sharpness: float | None, impl: str, content: bool | Content
) -> tuple[nn.Module, list[Found], dict[str, Certificate]]:
    """Copies a network and puts attention layers in the places of convolutions.

    Returns the copy, the convolutions with all their notes, and their certificates by name.
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


def _measure(
    model: nn.Module,
    made: nn.Module,
    found: Sequence[Found],
    left: Sequence[LeftAlone],
    certificates: Mapping[str, Certificate],
    chosen: tuple[str, float | None],
    given: Arguments,
) -> NetworkCertificate:
    """Compares the networks, watches how the layers compute, and puts the certificate together.

    `chosen` are the path asked for, and the tolerance.
    """
    impl, tolerance = chosen
    copied = copy_module(made).eval()
    convolutions = {item.names[0]: (item.plain.conv, item.plain.same) for item in found}
    watch = Watch(copied, [item.name for item in left])
    comparison = compare_networks(model, copied, given, convolutions, to_conv=False, watch=watch)
    entries = []
    for item in found:
        place, layer_notes = copied.get_submodule(item.names[0]), item.notes
        layer: RelativeAttention = place.attention if isinstance(place, SamePaddedAttention) else place  # type: ignore[assignment]
        size = watch.content_bytes.get(layer)
        if size is not None:
            step = f"with gradients, or once its gate is open, its content scores take {size / 2**20:.3g} MiB"
            layer_notes = (*layer_notes, step)
        kernel, path = tuple(item.plain.conv.kernel_size), watch.paths.get(layer)
        certificate = certificates[item.names[0]]
        entries.append(shorten(certificate, item.names, kernel_size=kernel, path=path, notes=layer_notes))
    notes = ["training mode, where it differs from evaluation mode", "inputs that take another branch of the network"]
    if not all(entry.exact for entry in entries):
        notes.append("a bound for the whole network: at this sharpness only single layers have one")
    left = (*left, *watch.calls.values())
    return certify_network(
        "network_to_attention",
        model,
        made,
        entries,
        left,
        comparison,
        tolerance=tolerance,
        impl=impl,
        not_covered=notes,
    )


class _Ties:
    """Parameters that several modules share."""

    def __init__(self, model: nn.Module, found: Sequence[Found]) -> None:
        """Lists the owners of each parameter."""
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
        """Gives a layer the parameters that it shares with other modules."""
        assert isinstance(layer.values, MergedValues)
        if item.plain.own_bias:
            layer.bias = old.bias  # type: ignore[assignment]
        if item.plain.own_weight:
            weight = item.module._parameters["weight"]
            assert weight is not None
            layer.values.weight = self._made.setdefault((weight, _layout(item)), layer.values.weight)

    def broken(self, item: Found) -> list[str]:
        """Names the modules that shared the convolution's weight and no longer share the layer's."""
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
    """Returns a key; layers with equal keys hold a weight in the same layout."""
    return type(item.plain.conv), item.plain.conv.groups


def _keep_state(old: nn.Module, item: Found, layer: RelativeAttention) -> None:
    """Takes mode and `requires_grad` over from the convolution."""
    layer.train(old.training)
    weight, bias = item.plain.conv.weight, item.plain.conv.bias
    layer.values.requires_grad_(weight.requires_grad)
    layer.encoding.requires_grad_(weight.requires_grad)
    if layer.gate is not None and layer.content is not None:
        layer.gate.requires_grad_(weight.requires_grad)
        layer.content.requires_grad_(weight.requires_grad)
    if layer.bias is not None and bias is not None:
        layer.bias.requires_grad_(bias.requires_grad)
