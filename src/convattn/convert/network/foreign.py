"""Convolutions of other libraries: the torch convolution that computes the same, or why there is none.

Classes are recognised by their full names, so that none of these libraries has to be imported.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FOREIGN", "REFUSED", "Foreign"]


@dataclass(frozen=True)
class Foreign:
    """How a subclass of a torch convolution differs from it."""

    weight: Callable[[nn.Module], Tensor] | None = None  # Returns the module's kernel; None if that is its weight
    # Tells whether it pads like TensorFlow's "SAME"; None if it never does
    same: Callable[[nn.Module], bool] | None = None
    extra: tuple[str, ...] = ()  # Names of its further parameters
    note: str | None = None  # What changes by the conversion


def _standardised(module: nn.Module) -> Tensor:
    """Weight standardisation: each output's weights with mean 0 and variance 1, times a gain where there is one."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gain, eps = getattr(module, "gain", None), float(module.eps)  # type: ignore[arg-type]
    scale = None if gain is None else (gain * module.scale).view(-1)
    flat = weight.reshape(1, len(weight), -1)
    made = functional.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0, eps=eps)
    return made.reshape_as(weight)


def _always(_: nn.Module) -> bool:
    return True


def _as_built(module: nn.Module) -> bool:
    return bool(module.same_pad)


def _with_a_padding(module: nn.Module) -> bool:
    return module.pad is not None


_FROZEN = "the standardised weight was converted; further training does not standardise it again"

FOREIGN: dict[str, Foreign] = {
    "timm.layers.conv2d_same.Conv2dSame": Foreign(same=_always),
    "timm.layers.std_conv.StdConv2d": Foreign(_standardised, note=_FROZEN),
    "timm.layers.std_conv.StdConv2dSame": Foreign(_standardised, _as_built, note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2d": Foreign(_standardised, extra=("gain",), note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2dSame": Foreign(_standardised, _as_built, extra=("gain",), note=_FROZEN),
    "transformers.models.bit.modeling_bit.WeightStandardizedConv2d": Foreign(
        _standardised, _with_a_padding, extra=("pad",), note=_FROZEN
    ),
}
"""Subclasses of torch's convolutions, by full name."""

REFUSED: dict[str, str] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "timm.layers.cond_conv2d.CondConv2d": "its kernels depend on the input",
    "timm.layers.conv2d_same.Conv2dSameExport": "it pads every image like the first one that it saw; use Conv2dSame",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""
