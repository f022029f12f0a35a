"""What a layer keeps between calls in evaluation mode, and when it is out of date."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, cast
from weakref import ref

import torch
from torch import Tensor, nn

from convattn.encodings import Encoding
from convattn.functional import GridAttention, ShiftConvolution, Shifts, shift_convolution
from convattn.grid import Geometry
from convattn.layers.call import Call
from convattn.layers.execution import Prepared, prepare, without_gradient
from convattn.layers.values import MergedValues

__all__ = ["Kept", "Quick"]

_ENTRIES = 8
_LARGEST = 1 << 26
"""Bytes above which a preparation is not kept."""


_Snapshot = tuple[dict[str, Any], str, Tensor, memoryview | None, bytes | Tensor]
"""A parameter as it was: where it is registered and by what name, its memory, that memory as bytes where it lies on a
CPU, and a copy of the bytes, or else of the tensor.

In a network of many layers a comparison of tensors takes as long as half a small convolution, and so does looking up
what is spread over memory; hence the bytes, and plain tuples.
"""


def _snapshot(registered: dict[str, Any], name: str) -> _Snapshot:
    """Notes a parameter that is registered so."""
    alias = registered[name].detach()
    if type(alias) is not Tensor or alias.device.type != "cpu" or not alias.is_contiguous():
        return registered, name, alias, None, alias.clone()
    contents = alias.view(-1).view(torch.uint8).numpy().data
    return registered, name, alias, contents, contents.tobytes()


def _unchanged(numbers: tuple[_Snapshot, ...]) -> bool:
    """Tells whether parameters still lie where they lay, and hold what they held."""
    try:
        for registered, name, alias, contents, old in numbers:
            new = registered.get(name)
            if type(new) is not nn.Parameter or not new.is_set_to(alias):
                return False
            if not (torch.equal(new, old) if contents is None else contents.tobytes() == old):  # type: ignore[arg-type]
                return False
    except RuntimeError:  # on another device
        return False
    return True


class Quick(NamedTuple):
    """What a layer was found to compute with on images of one size, and what this was found from.

    Attributes:
        run: A convolution, or products with the matrices of a grid of heads.
        groups: Number of blocks of W_h.
        exact: Whether the encoding's gradient is zero; else the layer is computed so only where it is not wanted.
        encoding: The encoding it was made of.
        geometry: Window and padding.
        numbers: The encoding's parameters.
    """

    run: ShiftConvolution | GridAttention
    groups: int
    exact: bool
    encoding: Encoding
    geometry: Geometry
    numbers: tuple[_Snapshot, ...]

    def holds(self, encoding: nn.Module | None, geometry: Geometry) -> bool:
        """Tells whether nothing has changed since."""
        return self.encoding is encoding and self.geometry is geometry and _unchanged(self.numbers)

    def serves(self, x: Tensor, impl: str) -> bool:
        """Tells whether the gradients that are wanted can be had in this way, and products of numbers cast."""
        if type(self.run) is GridAttention:
            return not (torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type))
        return self.exact or impl == "shift" or not _learns(self.encoding)


class Kept:
    """Preparations by key, each with the encoding it was made of and a copy of its numbers.

    A preparation is used again only for the same encoding and while those numbers are the same, however they may have
    been written: version counters miss writes through `.data`, so the numbers themselves are compared. They are few.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: OrderedDict[Hashable, tuple[ref[Encoding], list[Tensor], Prepared]] = OrderedDict()
        self._quick: OrderedDict[Hashable, Quick] = OrderedDict()
        self._last: tuple[Any, ...] | None = None

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
        if self._last is not None and not torch.is_grad_enabled():
            shape, dtype, path, encoding, window, values, numbers, maps, kernel, convolve, arguments = self._last
            modules = layer._modules
            if x.shape == shape and x.dtype is dtype and impl == path and window is geometry:
                new = values._parameters.get("weight")
                same = modules["encoding"] is encoding and modules["values"] is values and type(new) is nn.Parameter
                if same and new.is_set_to(maps) and _unchanged(numbers):
                    return convolve(x, kernel, layer.bias, *arguments)
        return self._attend(x, layer, geometry, impl)

    def _attend(self, x: Tensor, layer: nn.Module, geometry: Geometry, impl: str) -> Tensor | None:
        """Does the same for every size met before, in every way, and notes what can be quick the next time."""
        self._last = None
        found = self._quick.get((x.shape, x.dtype, impl))
        if found is None or not found.holds(layer._modules["encoding"], geometry):
            return None
        run, values, bias = found.run, cast("MergedValues", layer._modules["values"]), cast("Tensor | None", layer.bias)
        maps = values.maps()
        if maps.dtype is not x.dtype or not found.serves(x, impl):
            return None
        if type(values) is MergedValues and isinstance(run, ShiftConvolution) and not torch.is_grad_enabled():
            self._note_last(x, impl, found, values, run)
        if _learns(found.encoding):
            maps = without_gradient(maps, found.encoding)
        return run(x, maps, found.groups, bias)

    def _note_last(self, x: Tensor, impl: str, found: Quick, values: MergedValues, run: ShiftConvolution) -> None:
        """Notes what `attend` needs where all it takes is a kernel, which is W_h as it lies."""
        if run.plain is None:
            return
        convolve, arguments = run.plain
        work, maps = (x.shape, x.dtype, impl, found.encoding, found.geometry), values.weight.detach()
        self._last = *work, values, found.numbers, maps, run.kernel(maps), convolve, (*arguments, found.groups)

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
                _snapshot(part._parameters, name)
                for part in parts
                for name, tensor in part._parameters.items()
                if tensor is not None
            )
        run, exact = made, False
        if isinstance(made, Shifts):
            run = shift_convolution(made.offsets, made.window, call.axes, call.geometry)
            exact = made.leak == 0
        assert isinstance(run, ShiftConvolution | GridAttention)
        self._quick[key] = Quick(run, call.work.groups, exact, call.encoding, call.geometry, numbers)
        self._quick.move_to_end(key)
        while len(self._quick) > _ENTRIES:
            self._quick.popitem(last=False)
        return prepared


def _learns(encoding: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(number.requires_grad for number in encoding.parameters())


def _equal(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    return len(old) == len(new) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )
