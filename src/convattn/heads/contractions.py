"""Calls of torch that multiply two tensors and sum over axes, in the notation of einsum, however they are written."""

from collections.abc import Sequence
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_MATRICES = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul)
_BATCHES = (torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, torch.mv, Tensor.mv)
_PRODUCTS = (*_MATRICES, *_BATCHES)


class Arranged(NamedTuple):
    """The parts of a product of weights and values, with as many leading axes each."""

    weights: Tensor  # (*lead, queries, keys)
    values: Tensor  # (*lead, keys, channels)
    out: Tensor  # (*lead, queries, channels)
    allowed: Tensor | None  # Which pairs no mask excludes, as the weights; None if not known


class Contraction(NamedTuple):
    """An einsum of two tensors."""

    operands: tuple[Tensor, Tensor]
    names: tuple[str, str]  # A letter for each axis of an operand
    result: str  # A letter for each axis of what comes out

    def keys(self, place: int, axis: int | None) -> str:
        """Returns the letter of an axis of an operand, or of the one that is summed; empty if several or none are."""
        if axis is not None:
            return self.names[place][axis]
        left, right = self.names
        summed = [name for name in left if name in right and name not in self.result]
        return summed[0] if len(summed) == 1 else ""

    def arranged(self, place: int, keys: str, out: Tensor, allowed: Tensor | None) -> Arranged:
        """Sorts the axes, if the operand at `place` is weights whose keys have a letter.

        Axes of the weights that the values lack are those of the queries, and of heads that share their values. Axes of
        the values that the weights lack are channels, or, before all others, images that share their weights.
        """
        sizes: dict[str, int] = {}
        for operand, names in zip(self.operands, self.names, strict=True):
            for name, size in zip(names, operand.shape, strict=True):
                sizes[name] = max(size, sizes.get(name, 1))
        weights, values = (self._present(part, sizes) for part in (place, 1 - place))
        alone = [name for name in weights if name not in values]
        square = [name for name in alone if sizes[name] == sizes[keys]]
        queries = (square or alone or [""])[-1]
        shared = [name for name in values if name in weights]
        first = values[: values.index(shared[0])]
        channels = [name for name in values if name not in weights and name not in first]
        if first and not channels:
            channels.append(first.pop())
        lead = first + [name for name in weights if name not in (queries, keys)]
        for images in [name for name in self.result if name in lead][:1]:
            lead.remove(images)
            lead.insert(0, images)
        groups: list[str] = []
        for name in lead:  # heads that share values belong to the axis beside them
            if len(groups) > 1 and (name in alone or groups[-1][-1] in alone):
                groups[-1] += name
            else:
                groups.append(name)
        of_weights = [*groups, queries, keys]
        names = self.names[place]
        return Arranged(
            weights=_arrange(self.operands[place], names, of_weights, sizes),
            values=_arrange(
                self.operands[1 - place],
                self.names[1 - place],
                [*groups, keys, "".join(channels)],
                sizes,
            ),
            out=_arrange(out, self.result, [*groups, queries, "".join(channels)], sizes),
            allowed=None if allowed is None else _arrange(allowed, names, of_weights, sizes),
        )

    def _present(self, part: int, sizes: dict[str, int]) -> list[str]:
        """Lists the axes of an operand that are not stretched to the other's size."""
        pairs = zip(self.names[part], self.operands[part].shape, strict=True)
        return [name for name, size in pairs if size == sizes[name]]


def _arrange(tensor: Tensor, names: str, groups: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """Permutes axes, drops those of size 1 or adds those that groups lack or have, and joins those of a group."""
    order = "".join(groups)
    tensor = tensor.squeeze([axis for axis, name in enumerate(names) if name not in order])
    names = "".join(name for name in names if name in order)
    held = [name for name in order if name in names]
    tensor = tensor.permute([names.index(name) for name in held])
    for place, name in enumerate(order):
        if name not in held:
            tensor = tensor.unsqueeze(place)
    tensor = tensor.expand([sizes[name] for name in order])
    return tensor.reshape([prod(sizes[name] for name in group) for group in groups])


def read_contraction(
    func: Any, args: Sequence[Any], tensors: Sequence[Tensor]
) -> Contraction | None:
    """Reads a call of torch, with its tensors, as an einsum of two of them; None if it is no such call."""
    if func is torch.einsum and isinstance(args[0], str):
        return _read_equation(args[0], tensors)
    if func is functional.linear:
        return _read_equation("...k,dk->...d", tensors[:2])
    if func in _PRODUCTS:
        rows = "...q" if tensors[0].ndim > 1 else ""
        columns = "d" if tensors[1].ndim > 1 else ""
        lead = "..." if columns else ""
        return _read_equation(f"{rows}k,{lead}k{columns}->{rows or lead}{columns}", tensors)
    return None


def read_sum(factors: Sequence[Tensor], axis: int) -> Contraction | None:
    """Reads a product element by element that is summed over an axis, counted from the last."""
    inner = ascii_letters[: -1 - axis]
    return _read_equation(f"...Z{inner},...Z{inner}->...{inner}", factors)


def _read_equation(equation: str, operands: Sequence[Tensor]) -> Contraction | None:
    """Reads an einsum, perhaps with an ellipsis; None if it has more operands than two, or takes a diagonal."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    spare = "".join(letter for letter in ascii_letters if letter not in terms)
    names = []
    for term, operand in zip(terms.split(","), operands, strict=True):
        hidden = operand.ndim - len(term.replace("...", ""))
        names.append(term.replace("...", spare[len(spare) - hidden :]))
    if len(names) != 2 or any(len(set(name)) < len(name) for name in names):
        return None
    if not arrow:
        once = [letter for letter in sorted(terms) if terms.count(letter) == 1]
        result = "..." + "".join(letter for letter in once if letter.isalpha())
    left, right = names
    ellipsis = "".join(letter for letter in spare if letter in left + right)
    return Contraction((operands[0], operands[1]), (left, right), result.replace("...", ellipsis))
