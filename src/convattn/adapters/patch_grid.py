"""How many rows and columns of patches there are, for layers that see a row of tokens."""

from collections.abc import Callable
from typing import Any, final

from torch import nn

from convattn.errors import ShapeError

__all__ = ["PatchGrid"]


@final
class PatchGrid:
    """Rows and columns of the patches that were embedded last.

    A layer of attention is given tokens in a row, of which 2 × 8 and 4 × 4 patches are the same. So the module that
    cuts images into patches tells the sizes: as its forward pre-hook, a grid reads them off each image.

    Attributes:
        sizes: Rows and columns.
        measure: Returns rows and columns, from the module that cuts and the height and width of an image.
    """

    def __init__(
        self, sizes: tuple[int, int], measure: Callable[[nn.Module, tuple[int, int]], tuple[int, int]]
    ) -> None:
        """Starts with the sizes for the network's own images."""
        self.sizes, self.measure = sizes, measure

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the sizes off an image, as a forward pre-hook."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.measure(module, (int(height), int(width)))
        if sizes != self.sizes:
            self.sizes = sizes

    def require(self, tokens: int, prefix: int) -> tuple[int, int]:
        """Returns the sizes, for a number of tokens.

        Args:
            tokens: Number of tokens.
            prefix: How many of them come before the patches.

        Returns:
            Rows and columns.

        Raises:
            ShapeError: There are not so many tokens as prefix tokens and patches.
        """
        rows, cols = self.sizes
        if tokens != prefix + rows * cols:
            raise ShapeError(
                f"tokens must be {prefix + rows * cols}, {prefix} before {rows} x {cols} patches, but are {tokens}"
            )
        return rows, cols

    def __repr__(self) -> str:
        """Returns the sizes, for printing."""
        return "{} x {} patches".format(*self.sizes)
