"""Sees the products of attention weights and values while a network runs, fused or not."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from convattn.adapters.attention.einsum import factors_of_einsum
from convattn.adapters.attention.kernels import FusedKernel, Kernel, PlainKernel
from convattn.adapters.attention.torch_attention import TorchKernel

_SOFTMAX = (torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax)
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_FUSED_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Operations(TorchFunctionMode):
    """Reports each product of weights and values.

    A tensor made of a softmax is followed through whatever is done to it (dropout, a mix of heads, a gate) up to the
    product in which it is the one factor.
    """

    def __init__(self, report: Callable[[Kernel], None]) -> None:
        """Takes the function that is called with each product."""
        super().__init__()
        self.paused = False
        self._report = report
        self._weights: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes the operation, and looks at what it was."""
        named = dict(kwargs or {})
        if self.paused:
            return func(*args, **named)
        if func is functional.scaled_dot_product_attention:
            out = func(*args, **named)
            given = {**dict(zip(_FUSED_NAMES, args, strict=False)), **named}
            q, k, v = (given.pop(name) for name in _FUSED_NAMES[:3])
            self._report(FusedKernel(out, q, k, v, **given))
            return out
        if func is functional.multi_head_attention_forward:
            out = func(*args, **named)
            self._report(TorchKernel(out[0], args, named))
            return out
        product = self._product(func, args)
        out = func(*args, **named)
        if product is not None:
            weights, values, turned = product
            self._report(PlainKernel(out.mT if turned else out, weights, values))
        elif func in _SOFTMAX or (len(self._weights) and any(self._is_made(part) for part in _tensors((args, named)))):
            for made in _tensors(out):
                if made.is_floating_point():
                    self._weights[made] = True
        return out

    def _is_made(self, tensor: Any) -> bool:
        return tensor in self._weights

    def _product(self, func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, bool] | None:
        """Finds weights and values of a product, and whether it stands turned round (values to the left)."""
        if not len(self._weights):
            return None
        if func is torch.einsum:
            return factors_of_einsum(args, self._is_made)
        if func not in _PRODUCTS or len(args) < 2:
            return None
        left, right = args[:2]
        if self._is_made(left) and not self._is_made(right):
            return left, right, False
        if self._is_made(right) and not self._is_made(left):
            return right.mT, left.mT, True
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
