"""Rows and columns of patches, for layers that see only a sequence of tokens."""

from collections.abc import Callable
from typing import Any, final

from torch import nn

from convattn.errors import ShapeError

__all__ = ["PatchGrid"]


@final
class PatchGrid:
    """Rows and columns of the patches of the last image batch.

    An attention layer receives a sequence of tokens, which does not tell 2 × 8 from 4 × 4 patches. So the grid is a
    forward pre-hook of the module that cuts images into patches, and reads the sizes from its input.

    Attributes:
        sizes: Rows and columns.
        measure: Returns rows and columns, given that module and the height and width of an image.
    """

    def __init__(
        self, sizes: tuple[int, int], measure: Callable[[nn.Module, tuple[int, int]], tuple[int, int]]
    ) -> None:
        """Starts with the sizes for the network's own images."""
        self.sizes, self.measure = sizes, measure

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the sizes from an image, as a forward pre-hook."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.measure(module, (int(height), int(width)))
        if sizes != self.sizes:
            self.sizes = sizes

    def require(self, tokens: int, prefix: int) -> tuple[int, int]:
        """Returns the sizes if they fit the number of tokens.

        Args:
            tokens: Number of tokens.
            prefix: How many of them come before the patches.

        Returns:
            Rows and columns.

        Raises:
            ShapeError: The number of tokens is not that of prefix tokens and patches.
        """
        rows, cols = self.sizes
        if tokens != prefix + rows * cols:
            raise ShapeError(
                f"tokens must be {prefix + rows * cols} ({prefix} prefix and {rows} x {cols} patches), but are {tokens}"
            )
        return rows, cols

    def __repr__(self) -> str:
        """Returns the sizes, for printing."""
        return "{} x {} patches".format(*self.sizes)
