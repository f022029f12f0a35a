"""Calls of torch that multiply two tensors and sum over axes, in the notation of einsum, however they are written."""

from collections.abc import Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor

from convattn.heads.products import Product

_PRODUCTS = ("matmul", "__matmul__", "linalg_matmul", "bmm", "mm", "mv")
"""Names of functions of torch, which those of its modules and the methods of tensors share."""


class Contraction(NamedTuple):
    """An einsum of two tensors."""

    operands: Sequence[Tensor]
    names: Sequence[str]  # A letter for each axis of an operand
    result: str  # A letter for each axis of what comes out

    def keys(self, place: int, axis: int | None) -> str:
        """Returns the letter of an axis of an operand; of None, that of the only axis which is summed, or nothing."""
        if axis is not None:
            return self.names[place][axis]
        left, right = self.names
        summed = [name for name in left if name in right and name not in self.result]
        return summed[0] if len(summed) == 1 else ""

    def product(
        self, place: int, keys: str, out: Tensor, allowed: Tensor | None, *, by_hand: bool
    ) -> Product:
        """Describes what comes out as a product of the weights at `place`, whose keys have a letter, and values."""
        sizes: dict[str, int] = {}
        for names, operand in zip(self.names, self.operands, strict=True):
            for name, size in zip(names, operand.shape, strict=True):
                sizes[name] = max(size, sizes.get(name, 1))
        names, value_names = self.names[place], self.names[1 - place]
        weights, values = self.operands[place], self.operands[1 - place]
        axes = _whole_axes(names, weights, sizes), _whole_axes(value_names, values, sizes)
        groups, queries, channels = self._sorted(*axes, keys, sizes)
        of_weights = (*groups, queries, keys)
        of_out = (*groups, queries, channels)
        mask = None if allowed is None else _arranged(allowed, names, of_weights, sizes)
        wide = torch.promote_types(weights.dtype, torch.float32)
        weights = _arranged(weights, names, of_weights, sizes)
        of_axes = {name: sizes[name] for name in "".join(of_out)}
        return Product(
            out=_arranged(out, self.result, of_out, sizes),
            by_query=(weights,),
            by_key=(_arranged(values, value_names, (*groups, keys, channels), sizes),),
            compute=lambda weights, values: (values.mT.contiguous() @ weights.mT.contiguous()).mT,
            weights=lambda: weights.detach().to(wide, copy=True),
            mask=mask,
            rounding=torch.finfo(weights.dtype).eps,
            by_hand=by_hand,
            restore=lambda out: rearrange(
                out, f"{_joined(of_out)} -> {' '.join(self.result)}", **of_axes
            ),
        )

    def _sorted(
        self, weights: str, values: str, keys: str, sizes: dict[str, int]
    ) -> tuple[list[str], str, str]:
        """Returns the letters of leading axes, joined as they are one, of the queries, and of the channels.

        Axes of the weights that the values lack are those of the queries, and of heads that share their values. Axes of
        the values that the weights lack are channels, or, before all others, images that share their weights.
        """
        alone = [name for name in weights if name not in values]
        square = [name for name in alone if sizes[name] == sizes[keys]]
        queries = (square or alone or [""])[-1]
        start = min(values.index(name) for name in weights if name in values)
        lead = [*values[:start]]
        channels = [name for name in values[start:] if name not in weights]
        if lead and not channels:
            channels.append(lead.pop())
        lead += [name for name in weights if name not in (queries, keys)]
        images = next((name for name in self.result if name in lead), "")
        lead.sort(key=lambda name: name != images)
        groups: list[str] = []
        for name in lead:  # heads that share values belong to the axis beside them
            if len(groups) > 1 and (name in alone or groups[-1][-1] in alone):
                groups[-1] += name
            else:
                groups.append(name)
        return groups, queries, "".join(channels)


def _whole_axes(names: str, tensor: Tensor, sizes: dict[str, int]) -> str:
    """Returns the letters of axes without those of size 1 that are repeated to the other operand's size."""
    pairs = zip(names, tensor.shape, strict=True)
    return "".join(name for name, size in pairs if size == sizes[name])


def _arranged(
    tensor: Tensor,
    names: str,
    groups: Sequence[str],
    sizes: dict[str, int],
) -> Tensor:
    """Sorts axes into groups, each of which becomes one; repeats what is missing."""
    whole = _whole_axes(names, tensor, sizes)
    tensor = tensor.reshape([sizes[name] for name in whole])
    missing = {name: sizes[name] for name in "".join(groups) if name not in whole}
    return repeat(tensor, f"{' '.join(whole)} -> {_joined(groups)}", **missing)


def _joined(groups: Sequence[str]) -> str:
    """Writes groups of axes as einops does."""
    return " ".join(f"({' '.join(group)})" for group in groups)


def read_contraction(
    name: str, args: Sequence[Any], tensors: Sequence[Tensor]
) -> Contraction | None:
    """Reads a call of torch, with its tensors, as an einsum of two of them; None if it is no such call."""
    if name == "einsum" and isinstance(args[0], str):
        return _read_equation(args[0], tensors)
    if name == "linear":
        return _read_equation("...k,dk->...d", tensors[:2])
    if name in _PRODUCTS:
        rows = "...q" if tensors[0].ndim > 1 else ""
        columns = "d" if tensors[1].ndim > 1 else ""
        lead = "..." if columns else ""
        return _read_equation(f"{rows}k,{lead}k{columns}->{rows or lead}{columns}", tensors[:2])
    return None


def read_sum(factors: Sequence[Tensor], axis: int) -> Contraction | None:
    """Reads a product element by element that is summed over an axis, counted from the last."""
    inner = ascii_letters[: -1 - axis]
    return _read_equation(f"...Z{inner},...Z{inner}->...{inner}", factors)


def _read_equation(equation: str, operands: Sequence[Tensor]) -> Contraction | None:
    """Reads an einsum, perhaps with an ellipsis; None if it has not two operands, or takes a diagonal."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    spare = "".join(letter for letter in ascii_letters if letter not in terms)
    names = []
    if terms.count(",") != 1 or len(operands) != 2:
        return None
    for term, operand in zip(terms.split(","), operands, strict=True):
        hidden = operand.ndim - len(term.replace("...", ""))
        name = term.replace("...", spare[len(spare) - hidden :])
        if not len(name) == len(set(name)) == operand.ndim:
            return None
        names.append(name)
    if not arrow:
        letters = filter(str.isalpha, sorted(terms))
        result = "..." + "".join(letter for letter in letters if terms.count(letter) == 1)
    ellipsis = "".join(letter for letter in spare if letter in "".join(names))
    return Contraction(operands, names, result.replace("...", ellipsis))
