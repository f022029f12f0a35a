"""Calls of torch that multiply two tensors and sum over axes, in the notation of einsum, however they are written."""

from collections.abc import Sequence
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from convattn.heads.products import Product

_MATRICES = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul)
_BATCHES = (torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, torch.mv, Tensor.mv)
_PRODUCTS = (*_MATRICES, *_BATCHES)


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
        """Describes what comes out as a product of the weights at `place`, whose keys have a letter, and values.

        Axes of the weights that the values lack are those of the queries, and of heads that share their values. Axes of
        the values that the weights lack are channels, or, before all others, images that share their weights.
        """
        sizes: dict[str, int] = {}
        for operand, names in zip(self.operands, self.names, strict=True):
            for name, size in zip(names, operand.shape, strict=True):
                sizes[name] = max(size, sizes.get(name, 1))
        own: list[
            list[str]
        ] = []  # Letters of axes that are not stretched to the other operand's size
        for operand, names in zip(self.operands, self.names, strict=True):
            pairs = zip(names, operand.shape, strict=True)
            own.append([name for name, size in pairs if size == sizes[name]])
        weights = own[place]
        values = own[1 - place]
        alone = [name for name in weights if name not in values]
        square = [name for name in alone if sizes[name] == sizes[keys]]
        queries = (square or alone or [""])[-1]
        start = min(values.index(name) for name in weights if name in values)
        lead = values[:start]
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

        def arranged(tensor: Tensor, names: str, *last: str) -> Tensor:
            order = "".join([*groups, *last])
            left_out = [axis for axis, name in enumerate(names) if name not in order]
            held = [name for name in names if name in order]
            ordered = [name for name in order if name in held]
            tensor = tensor.squeeze(left_out)
            tensor = tensor.permute([held.index(name) for name in ordered])
            for axis, name in enumerate(order):
                if name not in held:
                    tensor = tensor.unsqueeze(axis)
            tensor = tensor.expand([sizes[name] for name in order])
            joined = [prod(sizes[name] for name in group) for group in (*groups, *last)]
            return tensor.reshape(joined)

        in_order = arranged(self.operands[place], self.names[place], queries, keys)
        wide = torch.promote_types(in_order.dtype, torch.float32)
        channel = "".join(channels)
        mask = None
        if allowed is not None:
            mask = arranged(allowed, self.names[place], queries, keys)
        return Product(
            out=arranged(out, self.result, queries, channel),
            inputs=(
                in_order,
                arranged(self.operands[1 - place], self.names[1 - place], keys, channel),
            ),
            compute=lambda weights, values: (values.mT.contiguous() @ weights.mT.contiguous()).mT,
            weights=lambda: in_order.detach().to(wide, copy=True),
            shape=tuple(in_order.shape),
            mask=mask,
            causal=False,
            rounding=torch.finfo(in_order.dtype).eps,
            by_hand=by_hand,
        )


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
        names.append(term.replace("...", spare[len(spare) - hidden :]))
    for name, operand in zip(names, operands, strict=True):
        if not len(name) == len(set(name)) == operand.ndim:
            return None
    if not arrow:
        once = [letter for letter in sorted(terms) if terms.count(letter) == 1]
        result = "..." + "".join(letter for letter in once if letter.isalpha())
    ellipsis = "".join(letter for letter in spare if letter in "".join(names))
    return Contraction(operands, names, result.replace("...", ellipsis))
