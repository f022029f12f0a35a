"""Whole networks: from convolutions to attention layers that compute the same, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module

from convattn.convert.calls import AttendedCalls, Call, Recorder, original_place
from convattn.convert.certificate import (
    CLOSE,
    Certificate,
    LeftAlone,
    NetworkCertificate,
    Verdict,
    require_share,
)
from convattn.convert.convolutions import (
    NetworkConvolution,
    find_convolutions,
    place_layers,
    select_modules,
    why_refused,
)
from convattn.convert.hard_heads import fixed_heads, unit_steps
from convattn.convert.network_check import NetworkComparison, compare_networks
from convattn.convert.network_runs import (
    Images,
    Inputs,
    copy_network,
    devices_of,
    read_arguments,
    run_copy,
    without_modes,
)
from convattn.convert.surgery import Patterns, graft, names_by_module, require_network
from convattn.convert.taps import CONVOLUTIONS, AnyConvolution, maps_of
from convattn.convert.to_attention import conv_to_attention
from convattn.convert.to_conv import attention_to_conv, require_options
from convattn.errors import ConvAttnError, ConversionError, UnsupportedModelError
from convattn.grid import whole_number
from convattn.layers import Content, NormalisedConv, RelativeAttention
from convattn.random_numbers import keep_random_state
from convattn.structure import dtypes_in_words, find_empty, full_name, network_digest
from convattn.wording import some

_Converted = tuple[AnyConvolution | NormalisedConv, Certificate]
"""A convolution, and the certificate of its conversion."""


def network_to_attention(
    model: nn.Module,
    images: Images | None = None,
    *,
    sharpness: float | None = None,
    impl: str = "auto",
    content: bool | Content = False,
    include: Patterns = None,
    exclude: Patterns = None,
    tolerance: float | None = CLOSE,
) -> tuple[nn.Module, NetworkCertificate]:
    """Copies a network and replaces every convolution by a relative-attention layer that computes the same.

    A module used in several places stays one module, tied parameters stay tied, and hooks of modules, dtype, device,
    mode and `requires_grad` are kept; hooks of parameters are not. With `sharpness`, the new centres are trained if the
    convolution's weight is. A weight that is computed (weight or spectral normalisation, pruning, weight
    standardisation) is computed in each call as before, inside an `AttendedCalls`.

    To measure the result, copies of both networks run in evaluation mode on copies of the images; this calls hooks, and
    takes about five times the memory of the network's parameters. Convolutions that a module calls as functions are
    converted inside an `AttendedCalls`. Those made of other operations (unfolding) are not detected.

    Source: `docs/explanation/theory.md` §3.

    Args:
        model: The network; it is not changed.
        images: What the network is measured on: images, or a tuple or mapping of its arguments. None draws one standard
            normal image of the size for which a network of timm was built, or else 224 × 224.
        sharpness: α > 0 of every head in 1/pixel²; None makes hard heads, with no attention off the taps.
        impl: "auto" (hard heads run as a convolution), "separable" (softmax attention, axis by axis), or another path
            of `RelativeAttention2d`.
        content: Whether layers also get gated scores that depend on the input, or which terms these have; see
            `conv_to_attention`. While the gates are closed this costs nothing without gradients. With gradients, or
            with open gates, the weights of all pairs of query and key are computed, in little memory but in time
            that grows with the square of the pixels: for nine heads on one core milliseconds at 7 × 7, seconds at
            56 × 56 and a minute at 112 × 112. So convert the last stages only, with `include`.
        include: Names of the convolutions to convert, as patterns like "layer4.*"; None means all.
        exclude: Name patterns of convolutions to leave alone; it takes precedence over `include`.
        tolerance: Largest difference that the certificate calls close, as a share in (0, 1) of its channel's largest
            output, if no prediction changes on the images given. None calls nothing close, as if no images were given.

    Returns:
        The new network and its certificate.

    Raises:
        UnsupportedModelError: Some modules cannot be converted (the message names them all), or the network cannot be
            copied.
        ConversionError: There is no convolution to convert, or the network does not run with attention layers in it.
        ArgumentError: An argument is out of range, a pattern matches nothing, the images do not fit the network, or the
            layers cannot be computed by `impl`.
        UnknownNameError: `impl` is unknown.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 7, 1, groups=1))
        >>> made, certificate = network_to_attention(net, images=torch.zeros(2, 3, 11, 13))
        >>> certificate.passed, [type(layer).__name__ for layer in made]
        (True, ['RelativeAttention2d', 'ReLU', 'RelativeAttention2d'])
    """
    require_network("model", model)
    require_share("tolerance", tolerance)
    arguments = read_arguments(model, images)
    with keep_random_state(model):
        convolutions, left = find_convolutions(model, include, exclude, arguments)
        result, certificates = with_attention(
            model, convolutions, sharpness=sharpness, content=content, impl=impl
        )
        copied = copy_network(result).eval()
        inputs = Inputs(convolution.layer for convolution in convolutions)
        inputs.watch(copied)
        comparison = compare_networks(model, copied, arguments, convolutions, to_conv=False)
    reached = [one for one in convolutions if one.is_reached]
    _require_run(model, [one.name for one in reached if one.layer not in inputs.shapes])
    layers = []
    for convolution, certificate in zip(convolutions, certificates, strict=True):
        first, *aliases = convolution.names
        lost = _lost_ties(model, result, convolution.names)
        in_network = replace(
            certificate,
            name=first,
            aliases=tuple(aliases),
            path=_path(copied, convolution.layer, inputs),
            notes=(*certificate.notes, *convolution.notes, *lost),
            call=convolution.number,
        )
        layers.append(in_network)
    certificate = _certify_network(
        (model, result),
        layers,
        left,
        comparison,
        direction="network_to_attention",
        impl=impl,
        tolerance=None if images is None else tolerance,
        not_covered=[
            "training mode, where it differs from evaluation mode",
            "inputs that take another branch of the network",
        ],
    )
    return result, certificate


def _require_run(model: nn.Module, passed_over: Sequence[str]) -> None:
    """Raises if layers that ran before have something in their places that does not run."""
    if passed_over:
        raise ConversionError(
            f"cannot convert {type(model).__name__}: what is put in the place of {some(passed_over)} does not run; the"
            " network may call it by another reference, such as one in a plain list, or ask for its class"
        )


def with_attention(
    model: nn.Module, convolutions: Sequence[NetworkConvolution], **options: Any
) -> tuple[nn.Module, list[Certificate]]:
    """Copies a network with attention layers in the places of convolutions; returns it and their certificates."""
    result = copy_network(model)
    layers = []
    # One weight for all layers that hold a shared one in the same layout
    weights: dict[Any, nn.Parameter] = {}
    certificates = []
    for convolution in convolutions:
        old: Any = result.get_submodule(convolution.name)
        layer, certificate = conv_to_attention(convolution.conv, **options)
        if convolution.call is None:
            conv = convolution.conv
            values: Any = layer.values
            layer.bias = old.bias
            is_plain = type(conv) in CONVOLUTIONS.values()
            own = old.weight if is_plain and values.kernel_size is not None else values.weight
            is_turned = not is_plain and set(conv.stride) != {1}
            key = (old.weight, type(conv), conv.groups, is_turned)
            values.weight = weights.setdefault(key, own)
        layers.append((convolution, layer))
        certificates.append(certificate)
    return place_layers(result, layers), certificates


def _path(network: nn.Module, name: str, inputs: Inputs) -> str | None:
    """Returns the path of an attention layer on the first images that it was called with; None if there were none."""
    if name not in inputs.shapes:
        return None
    layer: Any = network.get_submodule(name)
    with without_modes(devices_of(network)), _reparametrize_module(layer, inputs.weights[name]):
        return layer.plan(inputs.shapes[name][0]).path


def _lost_ties(source: nn.Module, result: nn.Module, names: Sequence[str]) -> list[str]:
    """Returns a note on modules that shared more parameters with a layer than they do now; else nothing."""
    before = set(source.get_submodule(names[0]).parameters())
    after = set(result.get_submodule(names[0]).parameters())
    inside = tuple(f"{name}.".removeprefix(".") for name in names)
    places = dict(result.named_modules(remove_duplicate=False))
    lost = []
    for name, module in source.named_modules(remove_duplicate=False):
        shared = before.intersection(module._parameters.values())
        if shared and not f"{name}.".startswith(inside):
            around = name.rpartition(".")[0]  # of values, where a convolution has come back
            place = places.get(name if name in places else around, nn.Module())
            if len(after.intersection(place.parameters())) < len(shared):
                lost.append(name)
    return [f"it no longer shares weights with {some(lost)}"] if lost else []


def network_to_conv(
    model: nn.Module,
    images: Images | None = None,
    *,
    kernel_size: int | None = None,
    mass: float | None = None,
    borders: str = "plain",
    include: Patterns = None,
    exclude: Patterns = None,
    tolerance: float | None = CLOSE,
) -> tuple[nn.Module, NetworkCertificate]:
    """Copies a network and replaces every attention layer that does not depend on content by a convolution.

    Each layer is converted by `attention_to_conv`, and if `images` are given, for the sizes that it receives there. A
    layer used in several places stays one layer. Layers that cannot be converted stay, and the certificate says why.
    Layers that are not registered as modules, for instance in a plain list, are not found.

    Args:
        model: The network; it is not changed, and the copy shares nothing with it.
        images: Images on which both networks are compared, in evaluation mode.
        kernel_size: Taps per axis, ≥ 1; None chooses a window for each layer. Hard heads may keep a smaller one.
        mass: Largest share in (0, 1) of a head's attention that may lie outside its window; None means rounding.
        borders: As in `attention_to_conv`: "exact" or "auto" keep what attention computes at borders. Give images of
            the size that the network is for.
        include: Name patterns of the layers to convert, like "blocks.*.mixer"; None means all.
        exclude: Name patterns of layers to leave alone; it takes precedence over `include`.
        tolerance: As in `network_to_attention`.

    Returns:
        The network and its certificate, which has each layer, what was left alone and why, and the comparison on the
        images.

    Raises:
        ConversionError: No layer could be converted, or the network does not run with convolutions in it.
        UnsupportedModelError: The network is compiled, cannot be copied, or has parameters without values.
        ArgumentError: An argument is out of range, a pattern matches nothing, or the images do not fit the network.
        UnknownNameError: `borders` is unknown.

    Example:
        >>> import torch
        >>> from convattn.convert import conv_to_attention
        >>> model = nn.Sequential(conv_to_attention(nn.Conv2d(3, 5, 3))[0], nn.ReLU())
        >>> made, record = network_to_conv(model, images=torch.randn(2, 3, 7, 7))
        >>> made[0], record.exact, record.passed
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1)), True, True)
    """
    require_network("model", model)
    require_share("tolerance", tolerance)
    if kernel_size is not None:
        whole_number("kernel_size", kernel_size)
    require_options(kernel_size, mass, borders)
    _require_network(model)
    arguments = None if images is None else read_arguments(model, images)
    every = names_by_module(model)
    named = {layer: every[layer] for layer in every if isinstance(layer, RelativeAttention)}
    selected, left = select_modules(named, "attention layers", include, exclude)
    inputs = Inputs(named[layer][0] for layer in selected)
    if arguments is not None:
        run_copy(model, arguments.batches(1)[:1], inputs.watch)
    computed: dict[nn.Module, Call] = {}
    for module in model.modules():
        if isinstance(module, AttendedCalls):
            computed |= module.computed()
    converted: dict[RelativeAttention, _Converted] = {}
    for layer in selected:
        name = named[layer][0]
        shapes = inputs.shapes.get(name, [])
        sizes = tuple(map(max, zip(*shapes, strict=True)))[2:]  # largest along each axis
        try:
            with _reparametrize_module(layer, inputs.weights.get(name, {})):
                conversion = _convert_layer(
                    layer, sizes, kernel_size=kernel_size, mass=mass, borders=borders
                )
                if layer in computed:
                    _require_call(conversion[0], layer, computed[layer])
            converted[layer] = conversion
        except ConvAttnError as error:
            left.append(LeftAlone(name, type(layer).__name__, str(error)))
    if not converted:
        none = "it has no RelativeAttention layers; other kinds of attention are not converted"
        why = "; ".join(LeftAlone.in_words(left)) or none
        raise ConversionError(
            f"cannot convert {type(model).__name__}: no layer could be converted ({why})"
        )
    result, layers = _put_convolutions(model, converted, named)
    comparison = None
    not_covered = []
    if arguments is None:
        not_covered.append("the whole network: no images were given")
    else:
        copied = copy_network(result).eval()
        of_torch = [layer.name for layer in layers if not layer.normalised and not layer.call]
        plain = [NetworkConvolution((name,), copied.get_submodule(name)) for name in of_torch]
        seen = Recorder()
        seen.watch(copied)
        comparison = compare_networks(model, copied, arguments, plain, to_conv=True)
        passed_over = []
        for layer, one in zip(converted, layers, strict=True):
            if not one.call and named[layer][0] in inputs.shapes and one.name not in seen.runs:
                passed_over.append(one.name)
        _require_run(model, passed_over)
    certificate = _certify_network(
        (model, result),
        layers,
        left,
        comparison,
        direction="network_to_conv",
        tolerance=None if images is None else tolerance,
        not_covered=not_covered,
    )
    return result, certificate


def _require_network(model: nn.Module) -> None:
    """Raises if the network is refused."""
    reason = why_refused(model)
    empty = find_empty(model)
    if reason is None and empty is not None:
        reason = f"its {empty} is on the meta device and has no values"
    if reason is not None:
        raise UnsupportedModelError(f"cannot convert {type(model).__name__}: {reason}")


def _convert_layer(layer: RelativeAttention, sizes: tuple[int, ...], **options: Any) -> _Converted:
    """Converts one layer: for all sizes if its heads are hard, else for the size that it receives, if it is known."""
    if not sizes:
        return attention_to_conv(layer, **options)
    heads = fixed_heads(layer)
    if heads is not None and heads.seen(unit_steps(layer.geometry, sizes)):
        conv, certificate = attention_to_conv(layer, **options)
        if certificate.any_size:
            return conv, certificate
    return attention_to_conv(layer, spatial=sizes, **options)


def _require_call(conv: Any, layer: RelativeAttention, call: Call) -> None:
    """Raises unless a convolution is that of a call, whose weight the module around it computes."""
    kind = type(conv)
    maps = layer.values.maps()
    same = maps_of(conv.weight, kind, conv.groups, conv.stride)
    if kind is not call.module or not torch.equal(same, maps):
        raise ConversionError(
            "its weight is computed in each call: it comes back with heads fixed on the taps alone"
        )


def _put_convolutions(
    model: nn.Module,
    converted: Mapping[RelativeAttention, _Converted],
    named: Mapping[RelativeAttention, Sequence[str]],
) -> tuple[nn.Module, list[Certificate]]:
    """Copies a network with convolutions in place of attention layers; returns it and their certificates."""
    _tie(converted)
    result = copy_network(model)
    replaced = {}
    for layer, (conv, _) in converted.items():
        replaced[result.get_submodule(named[layer][0])] = conv
    result = _without_wrappers(graft(result, replaced))
    layers = []
    for layer, (_, certificate) in converted.items():
        places = [original_place(model, name) for name in named[layer]]
        first, *aliases = [place.name for place in places]
        notes = [*certificate.notes, *_lost_ties(model, result, [first, *aliases])]
        path = "convolution"
        if certificate.normalised:
            path = "normalised convolution"
            cut = f"kernels cut off at most {certificate.leak:.1e} of a query's attention"
            notes.append(f"exact at borders; {cut}")
        in_network = replace(
            certificate,
            name=first,
            aliases=tuple(aliases),
            path=path,
            notes=tuple(notes),
            call=places[0].call,
        )
        layers.append(in_network)
    return result, layers


def _tie(converted: Mapping[RelativeAttention, _Converted]) -> None:
    """Lets convolutions share what their attention layers share."""
    shared: dict[Any, nn.Parameter] = {}
    for layer, (conv, _) in converted.items():
        pairs = [("bias", layer.bias), ("weight", getattr(layer.values, "weight", None))]
        for name, parameter in pairs:
            own = getattr(conv, name, None)
            if parameter is None or not isinstance(own, nn.Parameter):
                continue
            other = shared.setdefault((parameter, own.shape), own)
            if torch.equal(other, own):
                setattr(conv, name, other)


def _without_wrappers(network: nn.Module) -> nn.Module:
    """Puts modules back whose calls all became their own convolutions again."""
    unwrapped = {}
    for module in network.modules():
        inner = module.without_layers() if isinstance(module, AttendedCalls) else None
        if inner is not None:
            unwrapped[module] = inner
    return graft(network, unwrapped)


# --- Certificates of networks -----------------------------------------------------------------------------------------


def _certify_network(
    networks: tuple[nn.Module, nn.Module],
    layers: Sequence[Certificate],
    left_alone: Sequence[LeftAlone],
    comparison: NetworkComparison | None,
    *,
    tolerance: float | None,
    not_covered: Sequence[str],
    **how: Any,
) -> NetworkCertificate:
    """Makes the certificate of a conversion between two `networks`: the source, and the one made from it.

    `comparison` is None where the networks were not compared. `how` holds the direction, and the path asked for.
    """
    source, result = networks
    exact = all(layer.exact for layer in layers)
    verdict = _judge_network(layers, comparison, tolerance)
    measured: dict[str, Any] = {}
    if comparison is not None:
        worst = comparison.farthest
        if exact or verdict == "exact":
            worst = comparison.nearest_to_rounding
        not_covered = [*not_covered, *comparison.not_covered]
        if not exact:
            not_covered.append("a bound for the whole network: only single layers have one")
        if comparison.predictions is not None:
            measured = comparison.predictions._asdict()
        measured |= {"reference": comparison.reference, **comparison.measured(worst)}
    return NetworkCertificate(
        verdict=verdict,
        source=full_name(type(source)),
        result=full_name(type(result)),
        dtype=dtypes_in_words(result),
        layers=tuple(layers),
        left_alone=tuple(left_alone),
        tolerance=tolerance,
        weights=network_digest(result),
        not_covered=tuple(not_covered),
        **how,
        **measured,
    )


def _judge_network(
    layers: Sequence[Certificate], comparison: NetworkComparison | None, tolerance: float | None
) -> Verdict:
    verdicts = {layer.verdict for layer in layers}
    if "failed" in verdicts:
        return "failed"
    if comparison is None:
        return "exact" if verdicts == {"exact"} else "different"
    changed = None
    if comparison.predictions is not None:
        changed = comparison.predictions.top1_changed - comparison.predictions.top1_ties
    return comparison.judge(
        exact=verdicts == {"exact"},
        promised=all(layer.exact for layer in layers),
        changed=changed,
        tolerance=tolerance,
    )
