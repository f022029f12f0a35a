"""Whole networks: from convolutions to attention layers that compute the same, and back."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from convattn.convert.certificate import (
    CLOSE,
    Certificate,
    LayerCertificate,
    LeftAlone,
    NetworkCertificate,
    require_share,
)
from convattn.convert.comparison import certify_network, compare_networks
from convattn.convert.surgery import (
    Arguments,
    Watch,
    copy_module,
    copy_network,
    find_empty,
    full_name,
    graft,
    input_shapes,
    is_own_hook,
    keep_random_state,
    matches,
    names_by_module,
    patterns,
    read_arguments,
)
from convattn.convert.taps import (
    REFUSED,
    AnyConvolution,
    PlainConvolution,
    read_plain,
)
from convattn.convert.to_attention import SamePaddedAttention, conv_to_attention
from convattn.convert.to_conv import attention_to_conv, fixed_heads, require_borders, unit_steps
from convattn.errors import (
    ArgumentError,
    ConvAttnError,
    ConversionError,
    UnknownNameError,
    UnsupportedModelError,
    must_be,
    must_be_a,
)
from convattn.grid import PADDING_MODES, whole_number
from convattn.layers import Content, MergedValues, NormalisedConv, RelativeAttention
from convattn.wording import ITSELF, counted, some

_PATHS = ("auto", "separable")
"""How the layers of a converted network may compute."""

_Patterns = str | Sequence[str] | None
_Module = TypeVar("_Module", bound=nn.Module)


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
    takes about five times the memory of the network's parameters. Convolutions called as functions are not converted;
    the certificate names the modules that call them. Those made of other operations (unfolding) are not detected.

    A `NormalisedConv` becomes attention again, with tables that hold the images given, whatever the other arguments.

    Source: `docs/explanation/theory.md` §3.

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
        exclude: Name patterns of convolutions to leave alone; it takes precedence over `include`.
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
    if impl not in _PATHS:
        raise UnknownNameError("impl", impl, _PATHS)
    if content and impl != "auto":
        raise ArgumentError(
            must_be("impl", '"auto" with content, whose softmax cannot be taken axis by axis', impl)
        )
    require_share("tolerance", tolerance)
    given = read_arguments(model, images)
    with keep_random_state(model):
        found, left = find_convolutions(model, include, exclude)
        normalised = {
            plain.names[0]: plain.conv for plain in found if isinstance(plain.conv, NormalisedConv)
        }
        for name, shapes in (input_shapes(model, given, normalised) if normalised else {}).items():
            normalised[name].frozen_size = tuple(max(along) for along in zip(*shapes, strict=True))[
                2:
            ]
        made, certificates = with_attention(
            model, found, sharpness=sharpness, content=content, impl=impl
        )
        copied = copy_module(made).eval()
        watch = Watch(copied, [item.name for item in left])
        convolutions = {
            p.names[0]: (p.conv, p.same) for p in found if not isinstance(p.conv, NormalisedConv)
        }
        comparison = compare_networks(
            model, copied, given, convolutions, to_conv=False, watch=watch
        )
    lost = _lost_ties(model, found)
    layers = []
    for plain, certificate in zip(found, certificates, strict=True):
        place = copied.get_submodule(plain.names[0])
        layer: RelativeAttention = (
            place.attention if isinstance(place, SamePaddedAttention) else place
        )  # type: ignore[assignment]
        notes = [*plain.notes, *lost.get(plain.names[0], ())]
        if (size := watch.content_bytes.get(layer)) is not None:
            notes.append(
                f"with gradients, or once its gate is open, its content scores take {size / 2**20:.3g} MiB"
            )
        kernel = (
            plain.conv.taps
            if isinstance(plain.conv, NormalisedConv)
            else tuple(plain.conv.kernel_size)
        )
        path = watch.paths.get(layer)
        layers.append(
            LayerCertificate.of(
                certificate, plain.names, kernel_size=kernel, path=path, notes=notes
            )
        )
    for name, operation in watch.calls.items():
        kind = type(copied.get_submodule(name)).__name__
        left.append(
            LeftAlone(name, kind, f"it calls {operation} as a function, which is not converted")
        )
    notes = [
        "training mode, where it differs from evaluation mode",
        "inputs that take another branch of the network",
    ]
    if not all(layer.exact for layer in layers):
        notes.append("a bound for the whole network: at this sharpness only single layers have one")
    limit = None if images is None else tolerance
    return made, certify_network(
        "network_to_attention",
        (model, made),
        layers,
        left,
        comparison,
        tolerance=limit,
        impl=impl,
        not_covered=notes,
    )


def find_convolutions(
    model: nn.Module, include: _Patterns, exclude: _Patterns
) -> tuple[list[PlainConvolution], list[LeftAlone]]:
    """Returns the convolutions of a network to convert, and those to leave alone.

    Modules that cannot be converted raise one UnsupportedModelError that names them all; where nothing is left to
    convert, ConversionError says why.
    """
    kinds = (_ConvNd, NormalisedConv)
    named = {
        m: names
        for m, names in names_by_module(model).items()
        if isinstance(m, kinds) or _refusal(m)
    }
    chosen, left = _select(named, "convolutions", include, exclude)
    found, refused = [], []
    for module in chosen:
        try:
            if (reason := _refusal(module)) is not None:
                raise UnsupportedModelError(reason)
            plain = read_plain(module, named[module])
            found.append(plain._replace(notes=(*plain.notes, *_hook_notes(module))))
        except UnsupportedModelError as error:
            refused.append(f"  {named[module][0] or ITSELF} ({type(module).__name__}): {error}")
    if refused:
        raise UnsupportedModelError(
            f"cannot convert {counted(len(refused), 'module')} of {type(model).__name__}; leave them out with"
            " `exclude`, or replace them:\n" + "\n".join(refused)
        )
    if not found:
        none = f"there is no convolution to convert in {type(model).__name__}"
        raise ConversionError(f"{none}: {_why_none_found(model, left)}")
    return found, left


def _select(
    named: Mapping[_Module, list[str]], kind: str, include: _Patterns, exclude: _Patterns
) -> tuple[list[_Module], list[LeftAlone]]:
    """Splits modules by the patterns for their names into those to convert and those to leave alone."""
    every = [name for names in named.values() for name in names]
    included, excluded = (
        patterns("include", include, every, kind),
        patterns("exclude", exclude, every, kind),
    )
    chosen, left = [], []
    for module, names in named.items():
        if excluded is not None and matches(names, excluded):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by exclude"))
        elif included is not None and not matches(names, included):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by include"))
        else:
            chosen.append(module)
    return chosen, left


def _why_none_found(model: nn.Module, left: Sequence[LeftAlone]) -> str:
    """Returns why a network has no convolution to convert."""
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
    empty = next(
        (name for name, tensor in held.items() if tensor is not None and tensor.is_meta), None
    )
    return None if empty is None else f"its {empty} is on the meta device and has no values"


def _hook_notes(module: nn.Module) -> list[str]:
    """Says what happens to a module's hooks."""
    notes = []
    before = [hook for hook in module._forward_pre_hooks.values() if not is_own_hook(hook)]
    if before or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        notes.append("its hooks were kept and are called with the attention layer")
    own = parametrize.is_parametrized(module) or any(
        is_own_hook(hook) for hook in module._forward_pre_hooks.values()
    )
    if not own and any(held for name, held in vars(module).items() if "state_dict" in name):
        notes.append("its hooks on loading and saving were not kept")
    return notes


def with_attention(
    model: nn.Module, found: Sequence[PlainConvolution], **options: Any
) -> tuple[nn.Module, list[Certificate]]:
    """Copies a network with attention layers in the places of convolutions; returns it and their certificates."""
    made = copy_network(model)
    replaced: dict[nn.Module, nn.Module] = {}
    weights: dict[
        Any, nn.Parameter
    ] = {}  # One for all layers that hold a shared weight in the same layout
    certificates = []
    for plain in found:
        normalised, old = isinstance(plain.conv, NormalisedConv), made.get_submodule(plain.names[0])
        layer, certificate = conv_to_attention(
            plain.conv, **({"impl": options["impl"]} if normalised else options)
        )
        layer.values = old.values if normalised else layer.values  # type: ignore[assignment] # what is tied stays so
        if plain.bias_is_own:
            layer.bias = old.bias  # type: ignore[assignment]
        if plain.weight is not None and isinstance(layer.values, MergedValues):
            layer.values.weight = weights.setdefault(
                (plain.weight, _layout(plain)), layer.values.weight
            )
        layer.train(old.training)
        learns = [
            layer.values,
            layer.encoding,
            *([] if layer.gate is None else [layer.gate, layer.content]),
        ]
        for part in () if normalised else learns:
            part.requires_grad_(plain.conv.weight.requires_grad)
        if layer.bias is not None and plain.conv.bias is not None:
            layer.bias.requires_grad_(plain.conv.bias.requires_grad)
        replaced[old] = SamePaddedAttention(layer) if plain.same else layer
        certificates.append(certificate)
    return graft(made, replaced), certificates


def _layout(plain: PlainConvolution) -> tuple[type, int]:
    """Returns a key; layers with equal keys hold a weight in the same layout."""
    return type(plain.conv), plain.conv.groups


def _lost_ties(model: nn.Module, found: Sequence[PlainConvolution]) -> dict[str, list[str]]:
    """Returns notes, by convolution, on modules that shared its weight and do not share that of the new layer."""
    owners: dict[nn.Parameter, list[str]] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, []).append(f"{name}.{key}".lstrip("."))
    with_weight = [(plain, plain.weight) for plain in found if plain.weight is not None]
    layouts = {f"{plain.names[0]}.weight".lstrip("."): _layout(plain) for plain, _ in with_weight}
    lost = {}
    for plain, weight in with_weight:
        if others := [owner for owner in owners[weight] if layouts.get(owner) != _layout(plain)]:
            lost[plain.names[0]] = [f"it no longer shares its weight with {', '.join(others)}"]
    return lost


def network_to_conv(  # noqa: PLR0913 - one argument per choice, all but the network with a default
    model: nn.Module,
    *,
    kernel_size: int | None = None,
    mass: float | None = None,
    padding_mode: str | None = None,
    borders: str = "plain",
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    images: Tensor | None = None,
    labels: Int[Tensor, " images"] | None = None,
    tolerance: float | None = CLOSE,
) -> tuple[nn.Module, NetworkCertificate]:
    """Copies a network and replaces every attention layer that does not depend on content by a convolution.

    Each layer is converted by `attention_to_conv`, and if `images` are given, for the sizes that it receives there. A
    layer used in several places stays one layer. Layers that cannot be converted stay, and the certificate says why.
    Layers that are not registered as modules, for instance in a plain list, are not found.

    Args:
        model: The network; it is not changed, and the copy shares nothing with it.
        kernel_size: Taps per axis, ≥ 1; None chooses a window for each layer.
        mass: Largest share in (0, 1) of a head's attention that may lie outside its window; None means rounding.
        padding_mode: As in `attention_to_conv`, for layers that do not pad.
        borders: As in `attention_to_conv`: "exact" or "auto" keep what attention computes at borders. Give images of
            the size that the network is for.
        include: Name patterns of the layers to convert, like "blocks.*.mixer"; None means all.
        exclude: Name patterns of layers to leave alone; it takes precedence over `include`.
        images: Images on which both networks are compared, in evaluation mode.
        labels: Class of each image.
        tolerance: As in `network_to_attention`.

    Returns:
        The network and its certificate, which has each layer, what was left alone and why, and the comparison on the
        images.

    Raises:
        ConversionError: No layer could be converted, or the network does not run with convolutions in it.
        UnsupportedModelError: The network is compiled, cannot be copied, or has parameters without values.
        ArgumentError: An argument is out of range, a pattern matches nothing, or the labels or the network do not fit
            the images.
        UnknownNameError: `padding_mode` is unknown.

    Example:
        >>> import torch
        >>> from convattn.convert import conv_to_attention
        >>> model = nn.Sequential(conv_to_attention(nn.Conv2d(3, 5, 3))[0], nn.ReLU())
        >>> made, record = network_to_conv(model, images=torch.randn(2, 3, 7, 7))
        >>> made[0], record.exact, record.passed
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1)), True, True)
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    require_share("tolerance", tolerance)
    require_share("mass", mass)
    if kernel_size is not None:
        whole_number("kernel_size", kernel_size)
    if padding_mode is not None and padding_mode not in PADDING_MODES:
        raise UnknownNameError("padding_mode", padding_mode, PADDING_MODES)
    require_borders(borders, kernel_size, padding_mode)
    _require_images(model, images, labels)
    named = {
        m: names for m, names in names_by_module(model).items() if isinstance(m, RelativeAttention)
    }
    chosen, left = _select(named, "attention layers", include, exclude)
    sizes = {}
    if images is not None:
        sizes = _largest_sizes(model, [named[layer][0] for layer in chosen], images)
    convert = partial(
        attention_to_conv,
        kernel_size=kernel_size,
        mass=mass,
        padding_mode=padding_mode,
        borders=borders,
    )
    converted: list[tuple[list[str], AnyConvolution | NormalisedConv, Certificate]] = []
    for layer in chosen:
        name, parent = named[layer][0], model.get_submodule(named[layer][0].rpartition(".")[0])
        try:
            converted.append(
                (named[layer], *_convert_layer(convert, layer, parent, sizes.get(name)))
            )
        except ConvAttnError as error:
            left.append(LeftAlone(name, type(layer).__name__, str(error)))
    if not converted:
        none = "it has no RelativeAttention layers; other kinds of attention are not converted"
        why = "; ".join(LeftAlone.in_words(left)) or none
        raise ConversionError(
            f"cannot convert {type(model).__name__}: no layer could be converted ({why})"
        )
    made = copy_network(model)
    made = graft(made, {made.get_submodule(names[0]): conv for names, conv, _ in converted})
    plain = {names[0]: conv for names, conv, _ in converted if not isinstance(conv, NormalisedConv)}
    layers = []
    for names, conv, certificate in converted:
        notes = _untied(model, names)
        notes += [
            f"not covered: {item}" for item in certificate.not_covered if "dropout" not in item
        ]
        kernel, path = tuple(conv.kernel_size), "convolution"
        if isinstance(conv, NormalisedConv):
            kernel, path = conv.taps, "normalised convolution"
            notes.append(
                f"exact at borders; kernels cut off at most {certificate.leak:.1e} of a query's attention"
            )
        layers.append(
            LayerCertificate.of(certificate, names, kernel_size=kernel, path=path, notes=notes)
        )
    dropped = any(
        "dropout" in item for _, _, certificate in converted for item in certificate.not_covered
    )
    comparison, not_covered = (
        None,
        ["training: attention weights are no longer dropped out"] if dropped else [],
    )
    if images is None:
        not_covered.insert(0, "the whole network: no images were given")
    else:
        given, copied = Arguments((images,), {}, "the images given"), copy_module(made).eval()
        convolutions: Any = {name: (copied.get_submodule(name), False) for name in plain}
        comparison = compare_networks(
            model, copied, given, convolutions, to_conv=True, labels=labels
        )
        if not all(layer.exact for layer in layers):
            not_covered.insert(
                0, "other images: only single layers have a bound, the whole network has none"
            )
    limit = None if images is None else tolerance
    return made, certify_network(
        "network_to_conv",
        (model, made),
        layers,
        left,
        comparison,
        tolerance=limit,
        not_covered=not_covered,
    )


def _untied(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Returns a note on modules that share parameters with a layer, which its convolution does not; else nothing."""
    own, inside = (
        set(model.get_submodule(names[0]).parameters()),
        tuple(f"{name}." if name else "" for name in names),
    )
    every = model.named_parameters(remove_duplicate=False)
    others = [name for name, parameter in every if parameter in own and not name.startswith(inside)]
    return [f"it no longer shares weights with {', '.join(others)}"] if others else []


def _largest_sizes(
    model: nn.Module, names: Sequence[str], images: Tensor
) -> dict[str, tuple[int, ...]]:
    """Returns, for each layer that an image reaches, the largest size that it receives along each axis."""
    image = Arguments((images[:1],), {}, "one of the images")
    sizes = {}
    for name, shapes in input_shapes(model, image, names).items():
        spatial = [shape[2:] for shape in shapes]
        sizes[name] = tuple(max(along) for along in zip(*spatial, strict=True))
    return sizes


def _require_images(model: nn.Module, images: Tensor | None, labels: Tensor | None) -> None:
    """Raises if images or labels are of wrong type, number or device, or the network is refused or has no values."""
    if why := _refusal(model):
        raise UnsupportedModelError(f"cannot convert {type(model).__name__}: {why}")
    if images is not None and not isinstance(images, Tensor):
        raise ArgumentError(must_be_a("images", "a tensor", images))
    if images is not None and (images.ndim == 0 or not images.numel()):
        raise ArgumentError(must_be("images", "a batch of at least one", tuple(images.shape)))
    if labels is not None and not (
        isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
    ):
        raise ArgumentError(must_be("labels", "a tensor of whole numbers, one per image", labels))
    if labels is not None and (images is None or len(labels) != len(images)):
        count = "no images were given" if images is None else f"there are {len(images)} images"
        raise ArgumentError(
            f"labels must be one per image, but there are {len(labels)} labels and {count}"
        )
    if images is not None and (empty := find_empty(model)) is not None:
        why = f"its {empty} is on the meta device and has no values"
        raise UnsupportedModelError(f"cannot convert {type(model).__name__}: {why}")
    parameter = next(iter(model.parameters()), None)
    if images is not None and parameter is not None and parameter.device != images.device:
        raise ArgumentError(
            must_be("images", f"on the network's device {parameter.device}", images.device)
        )


def _convert_layer(
    convert: partial[tuple[AnyConvolution | NormalisedConv, Certificate]],
    layer: RelativeAttention,
    parent: nn.Module,
    sizes: tuple[int, ...] | None,
) -> tuple[AnyConvolution | NormalisedConv, Certificate]:
    """Converts one layer: for all sizes if its heads are hard, else for the size that it receives."""
    heads = fixed_heads(layer.encoding, next(layer.values.parameters()).dtype)
    seen = sizes is None or (heads is not None and heads.seen(unit_steps(layer.geometry, sizes)))
    conv, certificate = convert(layer, spatial=None if seen else sizes)
    if sizes is not None and seen and any("sizes" in item for item in certificate.not_covered):
        conv, certificate = convert(layer, spatial=sizes)
    changed = (
        isinstance(conv, NormalisedConv)
        or conv.kernel_size != layer.kernel_size
        or any(conv.padding)
    )
    if changed and isinstance(parent, SamePaddedAttention):
        raise UnsupportedModelError(
            "images are padded by its window, and its convolution has another"
        )
    return conv, certificate
