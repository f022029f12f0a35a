"""From a network of attention layers without content to a network of convolutions."""

from collections.abc import Callable, Sequence
from functools import partial

from jaxtyping import Int
from torch import Tensor, nn

from convattn.convert.certificate.network import CLOSE, certify_network, require_tolerance, shorten
from convattn.convert.classes import AnyConvolution
from convattn.convert.copies import copy_module, copy_network
from convattn.convert.layer.attention_map import unit_steps
from convattn.convert.layer.hard_heads import fixed_heads
from convattn.convert.layer.to_conv import attention_to_conv, require_mass
from convattn.convert.network.comparison import compare_networks
from convattn.convert.network.folding import fold_following
from convattn.convert.network.modules import graft, matches, names_by_module, patterns, require_matches
from convattn.convert.network.running import Arguments, shapes_met
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
from convattn.layers import RelativeAttention
from convattn.records import Certificate, LayerCertificate, LeftAlone, NetworkCertificate
from convattn.records.words import some


def network_to_conv(  # noqa: PLR0913 - one argument per choice, all but the network with a default
    model: nn.Module,
    *,
    kernel_size: int | None = None,
    mass: float | None = None,
    padding_mode: str | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    images: Tensor | None = None,
    labels: Int[Tensor, " images"] | None = None,
    fold: bool = True,
    tolerance: float | None = CLOSE,
) -> tuple[nn.Module, NetworkCertificate]:
    """Copies a network and replaces every attention layer that does not depend on content by a convolution.

    Each layer is converted by `attention_to_conv`, and if `images` are given, for the sizes that it receives there. A
    layer used in several places stays one layer. Layers that cannot be converted stay, and the certificate says why.
    Layers that are not registered as modules, for instance in a plain list, are not found.

    The copy of an `AttentionNet` holds convolutions and cannot be saved under that class; `ConvNet.of` turns it into a
    `ConvNet`, which can be saved.

    Args:
        model: The network; it is not changed, and the copy shares nothing with it.
        kernel_size: Taps per axis, ≥ 1; None chooses a window for each layer.
        mass: Largest share in (0, 1) of a head's attention that may lie outside its window; None means rounding.
        padding_mode: As in `attention_to_conv`, for layers that do not pad.
        include: Name patterns of the layers to convert, like "blocks.*.mixer"; None means all.
        exclude: Name patterns of layers to leave alone; it takes precedence over `include`.
        images: Images on which both networks are compared, in evaluation mode.
        labels: Class of each image.
        fold: Whether to merge the module after a new convolution into it if that is safe: the linear map of a
            `MixingBlock`, or batch normalisation in evaluation mode right after it in an `nn.Sequential` that runs as a
            whole, which is seen with `images`, and is certain if the network is an `nn.Sequential` itself.
        tolerance: As in `network_to_attention`.

    Returns:
        The network, and the certificate: each layer, what was left alone and why, and the comparison on the images.

    Raises:
        ConversionError: No layer could be converted, or the network does not run with convolutions in it.
        UnsupportedModelError: The network cannot be copied, or has parameters without values.
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
    included, excluded = patterns("include", include), patterns("exclude", exclude)
    require_tolerance(tolerance)
    _require_arguments(model, kernel_size, mass, images, labels)
    if padding_mode is not None and padding_mode not in PADDING_MODES:
        raise UnknownNameError("padding_mode", padding_mode, PADDING_MODES)
    named = names_by_module(model)
    chosen, left_alone = _split_by_patterns(named, included, excluded)
    sizes, calls = {}, None
    if images is not None:
        one, layers_of = Arguments((images[:1],), {}, "one of the images"), [named[layer][0] for layer in chosen]
        met = shapes_met(model, one, {*layers_of, *_in_sequences(model)})
        calls = {name: len(shapes) for name, shapes in met.items()}
        sizes = {name: _largest(met[name]) for name in layers_of if name in met}
    convert = partial(attention_to_conv, kernel_size=kernel_size, mass=mass, padding_mode=padding_mode)
    converted: dict[str, tuple[Certificate, AnyConvolution]] = {}
    for layer in chosen:
        name = named[layer][0]
        try:
            conv, certificate = _convert_layer(convert, layer, sizes.get(name))
        except ConvAttnError as error:
            left_alone.append(LeftAlone(name, type(layer).__name__, str(error)))
            continue
        converted[name] = certificate, conv
    if not converted:
        told: dict[str, list[str]] = {}
        for item in left_alone:
            told.setdefault(item.reason, []).append(item.name)
        reasons = "; ".join(f"{some(names)}: {reason}" for reason, names in told.items())
        reasons = reasons or "it has no RelativeAttention layers; other kinds of attention are not converted"
        raise ConversionError(f"cannot convert {type(model).__name__}: no layer could be converted ({reasons})")
    made = copy_network(model)
    made = graft(made, {made.get_submodule(name): conv for name, (_, conv) in converted.items()})
    folded = fold_following(made, [conv for _, conv in converted.values()], calls) if fold else {}
    layers = tuple(
        _layer_entry(certificate, conv, named[model.get_submodule(name)], folded.get(conv))
        for name, (certificate, conv) in converted.items()
    )
    comparison = None
    if images is not None:
        given = Arguments((images,), {}, "the images given")
        copied = copy_module(made).eval()
        convolutions = {name: (copied.get_submodule(name), False) for name in converted}
        comparison = compare_networks(model, copied, given, convolutions, to_conv=True, labels=labels)  # type: ignore[arg-type]
    not_covered = ["training: attention weights are no longer dropped out"]
    if comparison is None:
        not_covered.insert(0, "the whole network: no images were given")
    elif not all(layer.exact for layer in layers):
        not_covered.insert(0, "other images: only single layers have a bound, the whole network has none")
    limit = None if images is None else tolerance
    return made, certify_network(
        "network_to_conv", model, made, layers, left_alone, comparison, tolerance=limit, not_covered=not_covered
    )


def _in_sequences(model: nn.Module) -> list[str]:
    """Returns the names of each `nn.Sequential` and of the modules in it."""
    found = []
    for name, module in model.named_modules():
        if type(module) is nn.Sequential:
            found += [name, *(f"{name}.{child}".lstrip(".") for child in module._modules if module._modules[child])]
    return found


def _largest(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the largest size along each axis."""
    return tuple(max(sizes) for sizes in zip(*(shape[2:] for shape in shapes), strict=True))


def _convert_layer(
    convert: Callable[..., tuple[AnyConvolution, Certificate]], layer: RelativeAttention, sizes: tuple[int, ...] | None
) -> tuple[AnyConvolution, Certificate]:
    """Converts one layer: for all sizes if its heads are hard, else for the size that it receives."""
    if sizes is None:
        return convert(layer)
    heads = fixed_heads(layer.encoding, next(layer.values.parameters()).dtype)
    if heads is not None and heads.seen(unit_steps(layer.geometry, sizes)):
        conv, certificate = convert(layer)
        if not any("sizes" in item for item in certificate.not_covered):
            return conv, certificate
    return convert(layer, spatial=sizes)


def _require_arguments(
    model: nn.Module, kernel_size: int | None, mass: float | None, images: Tensor | None, labels: Tensor | None
) -> None:
    """Raises if an argument fits no layer, or the network has no values."""
    if kernel_size is not None:
        whole_number("kernel_size", kernel_size)
    if mass is not None:
        require_mass(mass)
    if images is not None and not isinstance(images, Tensor):
        raise ArgumentError(must_be_a("images", "a tensor", images))
    if images is not None and (images.ndim == 0 or not images.numel()):
        raise ArgumentError(must_be("images", "a batch of at least one", tuple(images.shape)))
    if labels is not None and (images is None or len(labels) != len(images)):
        count = "no images were given" if images is None else f"there are {len(images)} images"
        raise ArgumentError(f"labels must be one per image, but there are {len(labels)} labels and {count}")
    if images is None:
        return
    held = [*model.named_parameters(), *model.named_buffers()]
    empty = next((name for name, tensor in held if tensor.is_meta), None)
    if empty is not None:
        raise UnsupportedModelError(
            f"cannot convert {type(model).__name__}: its {empty} is on the meta device and has no values"
        )
    parameter = next(iter(model.parameters()), None)
    if parameter is not None and parameter.device != images.device:
        raise ArgumentError(must_be("images", f"on the network's device {parameter.device}", images.device))


def _split_by_patterns(
    named: dict[nn.Module, list[str]], included: Sequence[str] | None, excluded: Sequence[str] | None
) -> tuple[list[RelativeAttention], list[LeftAlone]]:
    """Splits the attention layers into those asked for and those left alone."""
    attention = {module: names for module, names in named.items() if isinstance(module, RelativeAttention)}
    every = [name for names in attention.values() for name in names]
    if every:
        require_matches(every, "attention layers", include=included, exclude=excluded)
    chosen: list[RelativeAttention] = []
    left_alone: list[LeftAlone] = []
    for module, names in attention.items():
        if excluded is not None and matches(names, excluded):
            left_alone.append(LeftAlone(names[0], type(module).__name__, "left out by exclude"))
        elif included is not None and not matches(names, included):
            left_alone.append(LeftAlone(names[0], type(module).__name__, "left out by include"))
        else:
            chosen.append(module)
    return chosen, left_alone


def _layer_entry(
    certificate: Certificate, conv: AnyConvolution, names: Sequence[str], folded: str | None
) -> LayerCertificate:
    notes = [folded] if folded else []
    notes += [f"not covered: {item}" for item in certificate.not_covered if "dropout" not in item]
    kernel = tuple(conv.kernel_size)
    return shorten(certificate, names, kernel_size=kernel, path="convolution", notes=tuple(notes))
