"""What was seen of one attention call, given to the function that reads its layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from convattn.adapters.attention.layout import Layout, global_layout
from convattn.convert.classes import full_name
from convattn.errors import UnsupportedModelError


@dataclass(frozen=True)
class Frame:
    """A module while it runs."""

    name: str  # Dotted name
    module: nn.Module
    args: tuple[Any, ...]  # Positional arguments
    kwargs: Mapping[str, Any]  # Named ones


@dataclass(frozen=True)
class Seen:
    """One attention call: the module, the modules that it runs in, and the sizes of its weights."""

    name: str  # Dotted name of the module
    module: nn.Module
    args: tuple[Any, ...]  # What it was called with
    kwargs: Mapping[str, Any]
    parents: tuple[Frame, ...]  # The modules around it, innermost first
    images: int  # Number of images in the batch
    shape: tuple[int, ...]  # Sizes of the weights: leading axes, heads, queries, keys
    mask: Tensor | None  # Mask or bias that the kernel was given
    features: Mapping[nn.Module, tuple[int, ...]]  # Latest output size of each convolution, or of what it became

    @property
    def queries(self) -> int:
        """Number of queries in a group."""
        return self.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys in a group."""
        return self.shape[-1]

    def argument(self, number: int, name: str) -> Any:
        """Returns an argument of the call by its place or name; None if it was not given."""
        return self.args[number] if len(self.args) > number else self.kwargs.get(name)

    def parent(self, *attributes: str) -> Frame:
        """Returns the innermost module around this one that has all these attributes."""
        for frame in self.parents:
            if all(getattr(frame.module, name, None) is not None for name in attributes):
                return frame
        raise UnsupportedModelError(f"no module around it has {' and '.join(attributes)}")

    def parent_of_kind(self, *kinds: str) -> Frame:
        """Returns the innermost module around this one of these classes, given by full name."""
        for frame in self.parents:
            if full_name(type(frame.module)) in kinds:
                return frame
        raise UnsupportedModelError(f"it runs in no {' or '.join(kind.rpartition('.')[2] for kind in kinds)}")

    def grid_of(self, embedding: nn.Module) -> tuple[int, int]:
        """Returns rows and columns of what the last convolution in a module gave out."""
        found = [shape for part, shape in self.features.items() if part in set(embedding.modules())]
        if not found:
            raise UnsupportedModelError(f"no convolution ran in {type(embedding).__name__}, so its grid is not known")
        return found[-1][-2], found[-1][-1]

    def global_layout(self, grid: tuple[int, ...], prefix: int = 0, source: str = "") -> Layout:
        """Returns the layout of queries and keys that are prefix tokens and then a grid row by row, if they fit."""
        tokens = prefix + torch.Size(grid).numel()
        if (self.queries, self.keys) != (tokens, tokens):
            sizes = " × ".join(map(str, grid))
            raise UnsupportedModelError(
                f"{self.queries} queries and {self.keys} keys are not {sizes} positions and {prefix} prefix tokens"
            )
        return global_layout(grid, prefix, source=source)


Read: TypeAlias = Callable[[Seen], Layout]
"""Reads the layout of a call, or raises UnsupportedModelError with the reason alone."""
