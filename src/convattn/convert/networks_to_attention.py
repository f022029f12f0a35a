"""From a network of convolutions to a network of attention layers that computes the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from convattn.convert.certificate import (
    CLOSE,
    Certificate,
    LeftAlone,
    NetworkCertificate,
    certify_network,
    require_tolerance,
    shorten,
)
from convattn.convert.classes import full_name
from convattn.convert.comparison import compare_networks
from convattn.convert.surgery import (
    REFUSED,
    Arguments,
    PlainConvolution,
    Watch,
    copy_module,
    copy_network,
    graft,
    is_own_hook,
    keep_random_state,
    matches,
    names_by_module,
    patterns,
    read_arguments,
    read_plain,
    require_matches,
)
from convattn.convert.to_attention import SamePaddedAttention, conv_to_attention
from convattn.errors import ArgumentError, ConversionError, UnknownNameError, UnsupportedModelError, must_be, must_be_a
from convattn.layers import Content, MergedValues, RelativeAttention
from convattn.wording import ITSELF, counted, some

_HOOKS_KEPT = "its hooks were kept and are called with the attention layer"
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class Found:
    """A convolution to be converted."""

    names: tuple[str, ...]  # Its dotted names in the network, the first one first
    module: nn.Module  # The module itself
    plain: PlainConvolution  # The plain convolution that computes the same
    notes: tuple[str, ...]  # What changes by the conversion


def find_convolutions(
    model: nn.Module, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> tuple[list[Found], list[LeftAlone]]:
    """Returns the convolutions of a network to convert, and those to leave alone.

    Modules that cannot be converted raise one UnsupportedModelError that names them all; where nothing is left to
    convert, ConversionError says why.
    """
    included, excluded = patterns("include", include), patterns("exclude", exclude)
    concerned = {m: names for m, names in names_by_module(model).items() if isinstance(m, _ConvNd) or _refusal(m)}
    every = [name for names in concerned.values() for name in names]
    if every:
        require_matches(every, "convolutions", include=included, exclude=excluded)
    found, left, refused = [], [], []
    for module, names in concerned.items():
        if not matches(names, included or ("*",)) or matches(names, excluded or ()):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by include or exclude"))
            continue
        try:
            reason = _refusal(module)
            if reason is not None:
                raise UnsupportedModelError(reason)
            plain = read_plain(module)
            found.append(Found(tuple(names), module, plain, (*plain.notes, *_hook_notes(module))))
        except UnsupportedModelError as error:
            refused.append(f"  {names[0] or ITSELF} ({type(module).__name__}): {error}")
    if refused:
        raise UnsupportedModelError(
            f"cannot convert {counted(len(refused), 'module')} of {type(model).__name__}; leave them out with"
            " `exclude`, or replace them:\n" + "\n".join(refused)
        )
    if not found:
        raise ConversionError(
            f"there is no convolution to convert in {type(model).__name__}: {_why_none_found(model, left)}"
        )
    return found, left


def _why_none_found(model: nn.Module, left: Sequence[LeftAlone]) -> str:
    if left:
        return f"include and exclude leave out all of them ({some([item.name for item in left])})"
    attention = sum(isinstance(module, RelativeAttention) for module in model.modules())
    if attention:
        are = "is" if attention == 1 else "are"
        return f"{counted(attention, 'layer')} {are} attention already; `network_to_conv` (`--to conv`) converts back"
    return "none of its modules is one, and those called as functions are not converted"


def _refusal(module: nn.Module) -> str | None:
    """Returns why a module cannot be converted, if its class alone shows it."""
    name = full_name(type(module))
    if name in REFUSED:
        return REFUSED[name]
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript; convert the network that it was made from"
    if name.startswith("torch._dynamo."):
        return "it is compiled; convert the network that it was made from, and compile the result"
    if name.startswith("torch.ao.nn.") and "Conv" in type(module).__name__:
        return "it is quantised; convert the network before quantising"
    if isinstance(module, LazyModuleMixin):
        return "it is lazy and not initialised; run the network once first"
    held = {**module._parameters, **module._buffers}
    empty = next((name for name, tensor in held.items() if tensor is not None and tensor.is_meta), None)
    return None if empty is None else f"its {empty} is on the meta device and has no values"


def _hook_notes(module: nn.Module) -> list[str]:
    """Says what happens to a module's hooks."""
    notes = []
    before = [hook for hook in module._forward_pre_hooks.values() if not is_own_hook(hook)]
    if before or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        notes.append(_HOOKS_KEPT)
    own = parametrize.is_parametrized(module) or any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    if not own and any(getattr(module, name, None) for name in _STATE_HOOKS):
        notes.append("its hooks on loading and saving were not kept")
    return notes


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
