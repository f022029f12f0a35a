"""A plain function of the displacement as an encoding."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from convattn.encodings.encoding import Encoding
from convattn.errors import require


@final
class ScoreFunction(Encoding):
    """Score f(δ)_h: the result of any function of displacements.

    Layers build one if their encoding is a function. A module is trained with the layer. `layer.parameters()` does not
    find tensors that a plain function reads: to train them, write a subclass of `Encoding`. A function is not saved.

    Attributes:
        function: f, displacements `(*points, dims)` → scores `(heads, *points)`.

    Example:
        >>> import torch
        >>> near = ScoreFunction(1, 2, function=lambda displacement: -displacement.abs().sum(-1)[None])
        >>> near(torch.tensor([[3.0, -1.0]])).tolist()
        [[-4.0]]
    """

    def __init__(self, num_heads: int, dims: int, *, function: Callable[[Tensor], Tensor]) -> None:
        """Builds the encoding from a function.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            function: Displacements `(*points, dims)` in pixels → scores `(heads, *points)`. It sees all those of a
                grid at once.

        Raises:
            ArgumentError: A size is out of range, or the function is a class or cannot be called.
        """
        super().__init__(num_heads, dims)
        is_function = callable(function) and not isinstance(function, type)
        require(is_function, "function", "a function of displacements", function)
        self.function = function

    def extra_repr(self) -> str:
        """Returns sizes and the function's name."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{super().extra_repr()}, function={name}"

    def score(self, displacement: Tensor) -> Tensor:
        """Calls the function; a module computes in the dtype of the displacements."""
        if not isinstance(self.function, nn.Module):
            return self.function(displacement)
        wide = {}
        for name, parameter in self.function.named_parameters():
            wide[name] = parameter.to(displacement.dtype)
        return torch.func.functional_call(self.function, wide, (displacement,))
