"""Tensors that a header names, each of the right dtype, shape and numbers."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from convattn.errors import ArgumentError, must_be

__all__ = ["Named", "wrong_numbers"]

FLOATS = (torch.float16, torch.float32)
"""Floating-point numbers that the page reads."""


@final
class Named:
    """Tensors by name; what is not as it must be raises ArgumentError with the place in the header."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes them."""
        self._tensors = tensors

    def get(
        self, name: object, key: str, dtype: torch.dtype | None, shape: Sequence[int | None] | None = None
    ) -> Tensor:
        """Returns a tensor; None as dtype stands for floating-point numbers, None in a shape for any size."""
        tensor = self._tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise ArgumentError(must_be(key, "a tensor that the file holds", name))
        if tensor.dtype not in (FLOATS if dtype is None else (dtype,)):
            expected = "float16 or float32" if dtype is None else str(dtype).removeprefix("torch.")
            raise ArgumentError(must_be(f"{key} ({name})", expected, str(tensor.dtype).removeprefix("torch.")))
        if shape is not None and not _fits(tensor.shape, shape):
            wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
            raise ArgumentError(must_be(f"{key} ({name})", f"of shape {wanted}", tuple(tensor.shape)))
        if not tensor.numel():
            raise ArgumentError(must_be(f"{key} ({name})", "of at least one number", tuple(tensor.shape)))
        return tensor

    def floats(self, name: object, key: str, shape: Sequence[int | None] | None = None) -> Tensor:
        """Returns a tensor of floating-point numbers, none of which is nan or +inf."""
        tensor = self.get(name, key, None, shape)
        if wrong_numbers(tensor):
            raise ArgumentError(f"{key} must be numbers, but {name} holds nan or inf")
        return tensor


def wrong_numbers(tensor: Tensor) -> bool:
    """Tells whether floating-point numbers hold nan or +inf; −inf is the score of a key that is never looked at."""
    return bool((tensor.isnan() | tensor.isposinf()).any())


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(one in (None, size) for one, size in zip(wanted, shape, strict=True))
