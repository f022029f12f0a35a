"""Which classes are read, and how; which are known and refused; and a user's own."""

from typing import NamedTuple

from torch import nn

from convattn.adapters.attention.own import OWN
from convattn.adapters.attention.partitions import HEADS_FIRST, PARTITIONS
from convattn.adapters.attention.pooled import POOLED
from convattn.adapters.attention.pvt import REDUCED
from convattn.adapters.attention.refused import REFUSED
from convattn.adapters.attention.seen import Read
from convattn.adapters.attention.swin import WINDOWS
from convattn.adapters.attention.timm_global import TIMM_GLOBAL
from convattn.adapters.attention.torchvision_vit import TORCHVISION_VIT
from convattn.adapters.attention.transformers_encoders import TRANSFORMERS
from convattn.convert.classes import full_name
from convattn.errors import ArgumentError, must_be, must_be_a


class Reader(NamedTuple):
    """How a class is read."""

    pattern: str  # Family of layouts
    read: Read
    heads_first: bool = False  # Whether the weights have their heads before their groups


_FAMILIES = (TIMM_GLOBAL, WINDOWS, PARTITIONS, REDUCED, POOLED, TRANSFORMERS, TORCHVISION_VIT)
_BY_NAME: dict[str, Reader] = {
    kind: Reader(pattern, read, kind in HEADS_FIRST) for family in _FAMILIES for kind, (pattern, read) in family.items()
}
_registered: dict[type[nn.Module], Reader] = {}


def register_attention(
    cls: type[nn.Module], read: Read, *, pattern: str = "registered", heads_first: bool = False
) -> None:
    """Says how the attention of a class of your own is laid out, so that `watch` reads it.

    The weights are found as for other modules: from `scaled_dot_product_attention`, or from a softmax and the product
    with values that follows. Their leading axes must be images, groups and heads, in this order, apart or as one.

    Args:
        cls: The class of the attention module; subclasses are not included. Registering it again replaces its reader.
        read: Called with what was `Seen` of each call; returns the `Layout`, or raises UnsupportedModelError.
        pattern: What `attention_layers` says of it.
        heads_first: Whether the weights have their heads before their groups, and not after.

    Raises:
        ArgumentError: `cls` is not a module class, or `read` cannot be called.

    Example:
        >>> class MyAttention(nn.Module): ...
        >>> register_attention(MyAttention, lambda seen: seen.global_layout((14, 14), prefix=1))
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ArgumentError(must_be("cls", "a subclass of nn.Module", cls))
    if not callable(read):
        raise ArgumentError(must_be_a("read", "a function from what was seen to a layout", read))
    _registered[cls] = Reader(pattern, read, heads_first)


def reader(module: nn.Module) -> Reader | None:
    """Returns how a module is read; None if its class is not known, or refused."""
    kind = type(module)
    return _registered.get(kind) or _BY_NAME.get(full_name(kind))


def is_own(module: nn.Module) -> bool:
    """Tells whether a module is a layer of this library, which computes its weights itself."""
    return type(module) in OWN


def is_known(module: nn.Module) -> bool:
    """Tells whether a module is read, or refused with a reason."""
    return reader(module) is not None or refusal(module) is not None or is_own(module)


def refusal(module: nn.Module) -> str | None:
    """Returns why a known class is not read; None for others."""
    return None if type(module) in _registered else REFUSED.get(full_name(type(module)))
