"""From a network of attention layers without content to a network of convolutions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from convattn.convert.certificate import (
    CLOSE,
    Certificate,
    LayerCertificate,
    LeftAlone,
    NetworkCertificate,
    certify_network,
    require_tolerance,
    shorten,
)
from convattn.convert.classes import AnyConvolution, TransposedConvolution
from convattn.convert.comparison import compare_networks
from convattn.convert.kernel_choice import fixed_heads, unit_steps
from convattn.convert.surgery import (
    CALLS,
    Arguments,
    copy_module,
    copy_network,
    graft,
    matches,
    names_by_module,
    patterns,
    require_matches,
    shapes_met,
)
from convattn.convert.to_conv import attention_to_conv, require_mass
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
from convattn.layers.block import MixingBlock
from convattn.wording import some

_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_NORM_TENSORS = ("running_mean", "running_var", "weight", "bias")


def fold_following(
    model: nn.Module, convolutions: Sequence[AnyConvolution], calls: Mapping[str, int] | None = None
) -> dict[nn.Module, str]:
    """Folds linear maps and batch normalisation into the convolutions before them, in place.

    The linear map of a `MixingBlock` is folded into its mixer; in an `nn.Sequential`, batch normalisation in evaluation
    mode is folded into the module right before it. A linear map in an `nn.Sequential` acts on the last axis and not on
    channels, and stays. Folded modules become `nn.Identity`. `W' = L W, b' = L b + c`, computed in float64 and rounded
    once. Modules that are used in several places, have hooks, or have a method of their own are left alone.

    A network may run a part of an `nn.Sequential`, or look between its modules. `calls` says how often each module of a
    `nn.Sequential`, and itself, runs in one pass: all must run equally often. Without `calls`, only an `nn.Sequential`
    that is the network, or lies in such ones alone, certainly runs as a whole. Returns, for a convolution, what was
    folded into it, or what was not and why.
    """
    named = names_by_module(model)
    wanted, told = set(convolutions), {}
    for parent, names in named.items():
        for conv, follower, name in _consecutive_modules(parent):
            if conv not in wanted or any(len(named[module]) > 1 for module in (parent, conv, follower)):
                continue
            if type(parent) is nn.Sequential and not _run_together(
                model, names[0], named[conv] + named[follower], calls
            ):
                continue
            assert isinstance(conv, AnyConvolution)
            linear = _normalisation(conv, follower) if type(parent) is nn.Sequential else _matrix(conv, follower)
            if linear is None:
                continue
            kind = type(follower).__name__
            reasons = [reason for module in (parent, conv, follower) if (reason := _why_not(module))]
            if reasons:
                told[conv] = f"{kind} not folded in: {reasons[0]}"
                continue
            _fold(conv, *linear)
            setattr(parent, name, nn.Identity().train(follower.training))
            told[conv] = f"{kind} folded in"
    return told


def _consecutive_modules(parent: nn.Module) -> Iterator[tuple[nn.Module, nn.Module, str]]:
    """Yields pairs of modules of which one follows the other, and the name of the second one in its parent."""
    if type(parent) is MixingBlock:
        yield parent.mixer, parent.dense, "dense"
    elif type(parent) is nn.Sequential:
        for (_, first), (name, second) in pairwise(parent._modules.items()):
            if first is not None and second is not None:
                yield first, second, name


def _run_together(model: nn.Module, parent: str, children: Sequence[str], calls: Mapping[str, int] | None) -> bool:
    """Tells whether an `nn.Sequential` runs as a whole, and these modules in it only so."""
    if calls is not None:
        return calls.get(parent, 0) > 0 and all(calls.get(name) == calls[parent] for name in children)
    parts = parent.split(".") if parent else []
    return all(type(model.get_submodule(".".join(parts[:n]))) is nn.Sequential for n in range(len(parts)))


def _matrix(conv: AnyConvolution, follower: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Returns the matrix (outputs, channels) and the bias of a linear map of channels; None if it is another module."""
    if type(follower) is not nn.Linear or follower.in_features != conv.out_channels or conv.groups != 1:
        return None
    weight = follower.weight.detach().double()
    return weight, weight.new_zeros(len(weight)) if follower.bias is None else follower.bias.detach().double()


def _normalisation(conv: AnyConvolution, follower: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Returns the factor and the bias of each channel in batch normalisation; None if it is another module."""
    if type(follower) is not _NORMS[len(conv.kernel_size)] or follower.training:
        return None
    mean, variance, scale, shift = (getattr(follower, name) for name in _NORM_TENSORS)
    if mean is None or variance is None or len(mean) != conv.out_channels:
        return None
    factor = (variance.double() + follower.eps).rsqrt()
    if scale is not None:
        factor = factor * scale.detach().double()
    bias = -mean.double() * factor
    return factor, bias if shift is None else bias + shift.detach().double()


def _why_not(module: nn.Module) -> str | None:
    """Returns why folding would lose what a module does, for an end of a sentence; None if it would not."""
    own = [key for key, value in vars(module).items() if callable(value) and hasattr(type(module), key)]
    if own:
        return f"{own[0]} of a {type(module).__name__} was replaced on the instance"
    return f"a {type(module).__name__} has hooks" if any(getattr(module, hooks) for hooks in CALLS) else None


def _fold(conv: AnyConvolution, linear: Tensor, bias: Tensor) -> None:
    """Merges a linear map into the convolution before it."""
    transposed = isinstance(conv, TransposedConvolution)
    weight = conv.weight.detach().double()
    old = bias.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().double()
    if transposed:
        weight = rearrange(weight, "(groups i) o ... -> (groups o) i ...", groups=conv.groups)
    flat = weight.flatten(1)
    flat = linear @ flat if linear.ndim == 2 else linear[:, None] * flat
    weight = flat.view(-1, *weight.shape[1:])
    if transposed:
        weight = rearrange(weight, "(groups o) i ... -> (groups i) o ...", groups=conv.groups)
    moved = bias + (linear @ old if linear.ndim == 2 else linear * old)
    conv.out_channels = len(moved)
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype).contiguous(), requires_grad=conv.weight.requires_grad)
    conv.bias = nn.Parameter(moved.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)


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
