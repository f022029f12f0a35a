"""What a layer keeps between calls in evaluation mode, and when it is out of date."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.functional import GridAttention, MapSizes, ShiftConvolution, Shifts, shift_convolution
from convattn.grid import Geometry
from convattn.layers.call import Call
from convattn.layers.execution import Prepared, prepare, without_gradient
from convattn.layers.values import MergedValues

__all__ = ["Kept", "Quick"]

_ENTRIES = 8
_LARGEST = 1 << 26
"""Bytes above which a preparation is not kept."""


class Snapshot(NamedTuple):
    """A parameter as it was, and how to find out in little time whether it still is.

    It is compared as bytes where it lies on a CPU: in a network of many layers a comparison of tensors takes as long as
    half a small convolution.

    Attributes:
        registered: Where it is registered.
        name: By what name.
        alias: Its memory.
        old: A copy of the tensor.
        contents: That memory as bytes; None where a CPU cannot read it.
        copied: Those, copied.
    """

    registered: dict[str, Any]
    name: str
    alias: Tensor
    old: Tensor
    contents: memoryview | None = None
    copied: bytes = b""

    @classmethod
    def of(cls, registered: dict[str, Any], name: str) -> "Snapshot":
        """Notes a parameter that is registered so."""
        alias = registered[name].detach()
        found = cls(registered, name, alias, alias.clone())
        if type(alias) is not Tensor or alias.device.type != "cpu" or not alias.is_contiguous():
            return found
        contents = alias.view(-1).view(torch.uint8).numpy().data
        return found._replace(contents=contents, copied=contents.tobytes())


class Quick:
    """What a layer was found to compute with on images of one size, and what this was found from.

    Attributes:
        shape, dtype: Of the images.
        impl: Path demanded, or "auto".
        run: A convolution, or products with the matrices of a grid of heads.
        groups: Number of blocks of W_h.
        exact: Whether the encoding's gradient is zero; else the layer is computed so only where it is not wanted.
        encoding: The encoding it was made of.
        geometry: Window and padding.
        numbers: The encoding's parameters.
    """

    __slots__ = (
        "_convolution",
        "_kernel",
        "dtype",
        "encoding",
        "exact",
        "geometry",
        "groups",
        "impl",
        "numbers",
        "run",
        "shape",
    )

    def __init__(
        self,
        shape: torch.Size,
        dtype: torch.dtype,
        impl: str,
        run: ShiftConvolution | GridAttention,
        call: Call,
        numbers: tuple[Snapshot, ...],
        *,
        exact: bool,
    ) -> None:
        """Notes how a call was computed."""
        self.shape, self.dtype, self.impl = shape, dtype, impl
        self.run, self.groups, self.exact = run, call.work.groups, exact
        self.encoding, self.geometry, self.numbers = ref(call.encoding), call.geometry, numbers
        self._convolution = run.plain if isinstance(run, ShiftConvolution) else None
        self._kernel: tuple[Tensor, Tensor] | None = None

    def holds(self, encoding: nn.Module | None, geometry: Geometry) -> bool:
        """Tells whether nothing has changed since."""
        if self.encoding() is not encoding or self.geometry is not geometry:
            return False
        try:
            for registered, name, alias, old, contents, copied in self.numbers:
                new = registered.get(name)
                if type(new) is not nn.Parameter or not new.is_set_to(alias):
                    return False
                if not (torch.equal(new, old) if contents is None else contents.tobytes() == copied):
                    return False
        except RuntimeError:  # on another device
            return False
        return True

    def serves(self, x: Tensor, impl: str) -> bool:
        """Tells whether the gradients that are wanted can be had in this way, and products of numbers cast."""
        if type(self.run) is GridAttention:
            return not (torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type))
        encoding = self.encoding()
        return self.exact or impl == "shift" or encoding is None or not _learns(encoding)

    def compute(self, x: Tensor, maps: Tensor, bias: Tensor | None) -> Tensor:
        """Computes without gradients; a kernel is looked for again only where the matrices lie in other memory."""
        if self._convolution is None or type(maps) is not nn.Parameter:
            return self.run(x, maps, self.groups, bias)
        convolve, arguments = self._convolution
        kernel = self._kernel
        if kernel is None or not maps.is_set_to(kernel[0]):
            assert isinstance(self.run, ShiftConvolution)
            kernel = self._kernel = maps.detach(), self.run.kernel(maps)
        return convolve(x, kernel[1], bias, *arguments, self.groups)


class Kept:
    """Preparations by key, each with the encoding it was made of and a copy of its numbers.

    A preparation is used again only for the same encoding and while those numbers are the same, however they may have
    been written: version counters miss writes through `.data`, so the numbers themselves are compared. They are few.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: OrderedDict[Hashable, tuple[ref[Encoding], list[Tensor], Prepared]] = OrderedDict()
        self._quick: OrderedDict[Hashable, Quick] = OrderedDict()
        self._last: Quick | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Leaves the preparations out of copies and files."""
        return Kept, ()

    def attend(self, x: Tensor, layer: nn.Module, geometry: Geometry, impl: str) -> Tensor | None:
        """Computes a layer as it was computed on such images before, if nothing has changed since.

        This is what a converted network does in each of its layers, so it is short, and reads the layer's modules and
        parameters where they are registered.

        Args:
            x: Images.
            layer: The layer.
            geometry: Its geometry.
            impl: Path demanded, or "auto".

        Returns:
            The layer's output, or None where the call must be prepared.
        """
        found = self._last
        if found is None or x.shape != found.shape or x.dtype is not found.dtype or impl != found.impl:
            found = self._last = self._quick.get((x.shape, x.dtype, impl))
        if found is None or not found.holds(layer._modules["encoding"], geometry):
            return None
        values = layer._modules["values"]
        maps = values._parameters.get("weight") if type(values) is MergedValues else None
        if maps is None:  # factored, or computed by another module
            maps = values.maps()  # type: ignore[union-attr, operator]
        if maps.dtype is not x.dtype:
            return None
        if torch.is_grad_enabled() or type(found.run) is GridAttention:
            if not found.serves(x, impl):
                return None
            encoding = found.encoding()
            if encoding is not None and _learns(encoding):
                maps = without_gradient(maps, encoding)
            return found.run(x, maps, found.groups, layer.bias)  # type: ignore[arg-type]
        return found.compute(x, maps, layer.bias)  # type: ignore[arg-type]

    def prepare(self, call: Call, *, training: bool) -> Prepared:
        """Prepares a call; in evaluation without gradients, returns what was kept of an earlier one.

        Args:
            call: What is to be computed.
            training: Whether the layer is in training mode.

        Returns:
            The preparation.

        Raises:
            ArgumentError: The path demanded cannot compute the call.
        """
        if training or call.learns_encoding or not call.values_known:
            return self._noted(call, prepare(call))
        key = (call.work, call.axes, call.impl, call.dtype, call.device)
        numbers = [*call.encoding.parameters(), *call.encoding.buffers()]
        found = self._entries.get(key)
        if found is not None and found[0]() is call.encoding and _equal(found[1], numbers):
            self._entries.move_to_end(key)
            return self._noted(call, found[2])
        self._entries.pop(key, None)
        with torch.inference_mode(False), torch.no_grad():  # what inference mode makes, a later backward pass refuses
            prepared = self._noted(call, prepare(call))
            if prepared.size <= _LARGEST:
                self._entries[key] = ref(call.encoding), [number.detach().clone() for number in numbers], prepared
        while len(self._entries) > _ENTRIES:
            self._entries.popitem(last=False)
        return prepared

    def _noted(self, call: Call, prepared: Prepared) -> Prepared:
        """Remembers how a layer turned out to be computed, unless its encoding holds more than parameters."""
        made = prepared.made
        if not isinstance(made, Shifts | GridAttention) or not call.values_known or prepared.size > _LARGEST:
            return prepared
        key = (torch.Size((call.work.batch, call.work.channels, *call.spatial)), call.dtype, call.impl)
        known, parts = self._quick.get(key), list(call.encoding.modules())
        if any(part._buffers for part in parts) or (known and known.holds(call.encoding, call.geometry)):
            return prepared
        with torch.inference_mode(False), torch.no_grad():
            numbers = tuple(
                Snapshot.of(part._parameters, name)
                for part in parts
                for name, tensor in part._parameters.items()
                if tensor is not None
            )
        run, exact = made, False
        if isinstance(made, Shifts):
            sizes = _map_sizes(call) if call.device.type == "cpu" else None
            run = shift_convolution(made.offsets, made.window, call.axes, call.geometry, sizes)
            exact = made.leak == 0
        assert isinstance(run, ShiftConvolution | GridAttention)
        self._quick[key] = self._last = Quick(*key, run, call, numbers, exact=exact)
        self._quick.move_to_end(key)
        while len(self._quick) > _ENTRIES:
            self._quick.popitem(last=False)
        return prepared


def _map_sizes(call: Call) -> MapSizes:
    work = call.work
    weights = work.heads * work.channels * work.outputs // work.groups
    return MapSizes(work.batch, math.prod(call.spatial), weights, work.groups)


def _learns(encoding: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(number.requires_grad for number in encoding.parameters())


def _equal(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    return len(old) == len(new) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )
