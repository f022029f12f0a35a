"""The convolutions of a network: found, and read as plain ones, or refused by name with the reason."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from convattn.convert.certificate import LeftAlone
from convattn.convert.normalised import is_normalised
from convattn.convert.surgery import (
    copy_module,
    full_name,
    is_own_hook,
    matches,
    names_by_module,
    patterns,
)
from convattn.convert.taps import (
    OPTIONS,
    SUPPORTED_CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    why_unsupported,
)
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.wording import ITSELF, counted, some

_SAME = "timm.layers.conv2d_same.Conv2dSame"
"""Class of convolutions that always pad like TensorFlow's "SAME"."""

_STANDARDISED: dict[str, str | None] = {
    "timm.layers.std_conv.StdConv2d": None,
    "timm.layers.std_conv.StdConv2dSame": "same_pad",
    "timm.layers.std_conv.ScaledStdConv2d": None,
    "timm.layers.std_conv.ScaledStdConv2dSame": "same_pad",
    "transformers.models.bit.modeling_bit.WeightStandardizedConv2d": "pad",
}
"""Classes of convolutions that standardise their weight, with the attribute that tells whether they pad like "SAME"."""

_REFUSED: dict[str, str] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "timm.layers.cond_conv2d.CondConv2d": "its kernels depend on the input",
    "timm.layers.conv2d_same.Conv2dSameExport": "it pads every image like the first one that it saw; use Conv2dSame",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""

_HARMLESS = frozenset(
    [
        "__init__",
        "__module__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__repr__",
        "__static_attributes__",
        "__firstlineno__",
        "__annotate_func__",
        "__annotations_cache__",
        "__constants__",
        "reset_parameters",
        "extra_repr",
    ]
)
"""What a subclass may define without computing something else."""

Patterns = str | Sequence[str] | None
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class NetworkConvolution:
    """A convolution of a network, and the plain one that computes the same."""

    names: tuple[str, ...]  # Names of the module in the network, the first one first
    conv: Any  # A convolution of torch, or a normalised one; it may share memory with the module
    same: bool = False  # Whether the image is first padded by its size, as TensorFlow's "SAME" does
    # The module's own parameter, if it is the kernel; None if the kernel is computed
    weight: nn.Parameter | None = None
    bias_is_own: bool = True  # Whether the bias is the module's parameter itself, or missing
    notes: tuple[str, ...] = ()  # What changes by the conversion

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]

    @property
    def layout(self) -> tuple[type, int]:
        """A key; convolutions with equal keys hold a weight in the same layout."""
        return type(self.conv), self.conv.groups


def find_convolutions(
    model: nn.Module, include: Patterns, exclude: Patterns
) -> tuple[list[NetworkConvolution], list[LeftAlone]]:
    """Returns the convolutions of a network to convert, and those to leave alone.

    Modules that cannot be converted raise one UnsupportedModelError that names them all; where nothing is left to
    convert, ConversionError says why.
    """
    every = names_by_module(model)
    named = {module: names for module, names in every.items() if _may_convolve(module)}
    selected, left = select_modules(named, "convolutions", include, exclude)
    convolutions = []
    refused = []
    for module in selected:
        try:
            convolutions.append(_read(module, named[module]))
        except UnsupportedModelError as error:
            refused.append(f"  {named[module][0] or ITSELF} ({type(module).__name__}): {error}")
    if refused:
        raise UnsupportedModelError(
            f"cannot convert {counted(len(refused), 'module')} of {type(model).__name__}; leave them out with"
            " `exclude`, or replace them:\n" + "\n".join(refused)
        )
    if not convolutions:
        none = f"there is no convolution to convert in {type(model).__name__}"
        raise ConversionError(f"{none}: {_why_none(model, left)}")
    return convolutions, left


def _may_convolve(module: nn.Module) -> bool:
    is_convolution = isinstance(module, _ConvNd) or is_normalised(module)
    return is_convolution or why_refused(module) is not None


def select_modules(
    named: Mapping[_Module, list[str]], kind: str, include: Patterns, exclude: Patterns
) -> tuple[list[_Module], list[LeftAlone]]:
    """Splits modules by the patterns for their names into those to convert and those to leave alone."""
    every = [name for names in named.values() for name in names]
    included = patterns("include", include, every, kind)
    excluded = patterns("exclude", exclude, every, kind)
    selected = []
    left = []
    for module, names in named.items():
        if excluded is not None and matches(names, excluded):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by exclude"))
        elif included is not None and not matches(names, included):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by include"))
        else:
            selected.append(module)
    return selected, left


def _why_none(model: nn.Module, left: Sequence[LeftAlone]) -> str:
    """Returns why a network has no convolution to convert."""
    if left:
        return f"include and exclude leave out all of them ({some([item.name for item in left])})"
    attention = sum(isinstance(module, RelativeAttention) for module in model.modules())
    if attention:
        are = "is" if attention == 1 else "are"
        return f"{counted(attention, 'layer')} {are} attention already; `network_to_conv` (`--to conv`) converts back"
    return "none of its modules is one, and those called as functions are not converted"


def why_refused(module: nn.Module) -> str | None:
    """Returns why a module cannot be converted, if its class alone shows it."""
    name = full_name(type(module))
    reason = _REFUSED.get(name)
    if isinstance(module, torch.jit.ScriptModule):
        reason = "it is compiled by TorchScript; convert the network that it was made from"
    elif name.startswith("torch._dynamo."):
        reason = "it is compiled; convert the network that it was made from, and compile the result"
    elif name.startswith("torch.ao.nn.") and "Conv" in type(module).__name__:
        reason = "it is quantised; convert the network before quantising"
    elif isinstance(module, LazyModuleMixin):
        reason = "it is lazy and not initialised; run the network once first"
    if reason is not None:
        return reason
    for key, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and tensor.is_meta:
            return f"its {key} is on the meta device and has no values"
    return None


def _read(module: nn.Module, names: Sequence[str]) -> NetworkConvolution:
    """Reads a module as a plain convolution; if it may compute something else, UnsupportedModelError says why."""
    reason = why_refused(module)
    if reason is not None:
        raise UnsupportedModelError(reason)
    if is_normalised(module):
        plain = NetworkConvolution(tuple(names), copy.copy(module))
    else:
        plain = _read_convolution(module, names)
    return replace(plain, notes=(*plain.notes, *_hook_notes(module)))


def _hook_notes(module: nn.Module) -> list[str]:
    """Says what happens to a module's hooks."""
    own = parametrize.is_parametrized(module)
    others = bool(module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)
    for hook in module._forward_pre_hooks.values():
        if is_own_hook(hook):
            own = True
        else:
            others = True
    notes = []
    if others:
        notes.append("its hooks were kept and are called with the attention layer")
    on_state = any(hooks for name, hooks in vars(module).items() if "state_dict" in name)
    if on_state and not own:
        notes.append("its hooks on loading and saving were not kept")
    return notes


def _read_convolution(module: nn.Module, names: Sequence[str]) -> NetworkConvolution:
    """Reads a convolution of torch or of a subclass, with any parametrisation."""
    kind = parametrize.type_before_parametrizations(module)
    name = full_name(kind)
    standardised = name in _STANDARDISED
    base = next(known for known in SUPPORTED_CONVOLUTIONS if issubclass(kind, known))
    if name != _SAME and not standardised:
        _require_nothing_overridden(kind, base)
    computed, working = _without_reparametrisation(module)
    _require_nothing_else(module, working, computed, {"gain", "pad"} if standardised else set())
    conv = _build_plain(base, working, _standardised if standardised else None)
    reason = why_unsupported(conv)
    if reason is not None:
        raise UnsupportedModelError(reason)
    notes = [
        f"its {tensor} is computed by {how}; its present value was converted"
        for tensor, how in computed.items()
    ]
    if standardised:
        notes.append(
            "the standardised weight was converted; further training does not standardise it again"
        )
    pads = _STANDARDISED.get(name)
    is_own = not standardised and "weight" not in computed
    return NetworkConvolution(
        names=tuple(names),
        conv=conv,
        same=name == _SAME or (pads is not None and getattr(module, pads) not in (None, False)),
        weight=module._parameters["weight"] if is_own else None,
        bias_is_own="bias" not in computed,
        notes=tuple(notes),
    )


def _require_nothing_overridden(kind: type, base: type) -> None:
    """Raises if a subclass overrides anything that its base class uses."""
    instance = base(1, 1, 1, device="meta")
    for part in kind.__mro__:
        if part in base.__mro__:
            continue
        used = {*dir(instance), "__getattribute__"}
        overridden = sorted(used & vars(part).keys() - _HARMLESS)
        if overridden:
            what = f"{full_name(part)} is a subclass of {base.__name__} that defines {', '.join(overridden)}"
            raise UnsupportedModelError(f"{what}; it may compute something else")


def _require_nothing_else(
    module: nn.Module, working: nn.Module, computed: Mapping[str, str], allowed: set[str]
) -> None:
    """Raises if a module replaces a method, or holds more than a weight and a bias."""
    replaced = sorted({"forward", "_conv_forward", "_output_padding"} & vars(module).keys())
    if replaced:
        raise UnsupportedModelError(f"its method {replaced[0]} was replaced on the instance")
    for tensor in ("weight", "bias"):
        if tensor not in computed and tensor not in working._parameters:
            raise UnsupportedModelError(f"its {tensor} is not a parameter; make it one first")
    held = {**working._parameters, **working._buffers, **working._modules}.keys()
    others = held - {"weight", "bias"} - allowed
    if parametrize.is_parametrized(module) and computed.keys() <= {"weight", "bias"}:
        others -= {"parametrizations"}
    if others:
        raise UnsupportedModelError(
            f"it holds more than a weight and a bias: {', '.join(sorted(others))}"
        )


def _without_reparametrisation(module: nn.Module) -> tuple[dict[str, str], nn.Module]:
    """Returns which tensors are computed and by what, and a module to read them from; itself if none are."""
    hooked = any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    if not hooked and not parametrize.is_parametrized(module):
        return {}, module
    computed: dict[str, str] = {}
    with torch.enable_grad():  # else a computed weight would come back as one that does not learn
        working = copy_module(module).eval()  # a spectral norm in training would take another step
        if parametrize.is_parametrized(working):
            # not removed: that would change the class, which copies share
            for name, steps in working.parametrizations.items():  # type: ignore[union-attr, operator]
                kinds = [type(step).__name__.removeprefix("_") for step in steps]
                computed[name] = " and ".join(kinds)
        for hook in list(working._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                computed[hook.name] = "WeightNorm"
                remove_weight_norm(working, hook.name)
            elif isinstance(hook, SpectralNorm):
                computed[hook.name] = "SpectralNorm"
                remove_spectral_norm(working, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                computed[hook._tensor_name] = "pruning"
                prune.remove(working, hook._tensor_name)
    return computed, working


def _build_plain(
    base: type[nn.Module], working: nn.Module, kernel_of: Callable[[nn.Module], Tensor] | None
) -> AnyConvolution:
    """Builds the plain convolution around the tensors of another; `kernel_of` computes its kernel, if given."""
    options = {name: getattr(working, name) for name in (*OPTIONS, "padding_mode")}
    if not options["in_channels"] or not options["out_channels"]:
        raise UnsupportedModelError("it has no channels")
    if base in TRANSPOSED_CONVOLUTIONS.values():
        options["output_padding"] = working.output_padding
    conv = base(**options, bias=False, device="meta")
    # what torch pads by before the product, with other modes than zeros
    ahead = [list(one._reversed_padding_repeated_twice) for one in (working, conv)]  # type: ignore[arg-type]
    if options["padding_mode"] != "zeros" and ahead[0] != ahead[1]:
        raise UnsupportedModelError(
            "its padding was changed after it was made, and torch still pads as before"
        )
    for name in ("weight", "bias"):
        with torch.enable_grad():
            tensor = getattr(working, name)
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter) or type(tensor.data) is not Tensor:
            raise UnsupportedModelError(
                f"its {name} is a {full_name(type(tensor))}, not a plain tensor"
            )
        numbers = tensor.detach()
        if name == "weight" and kernel_of is not None:
            with torch.no_grad():
                numbers = kernel_of(working)
        conv.register_parameter(name, nn.Parameter(numbers, requires_grad=tensor.requires_grad))
    return conv.train(working.training)  # type: ignore[return-value]


def _standardised(module: nn.Module) -> Tensor:
    """Returns each output's weights with mean 0 and variance 1, times a gain if the module has one."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gain = getattr(module, "gain", None)
    scale = None if gain is None else (gain * module.scale).view(-1)
    standardised = functional.batch_norm(
        weight.reshape(1, len(weight), -1),
        None,
        None,
        weight=scale,
        training=True,
        momentum=0.0,
        eps=float(module.eps),  # type: ignore[arg-type]
    )
    return standardised.reshape_as(weight)
