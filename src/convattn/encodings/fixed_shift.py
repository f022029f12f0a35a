"""Shift encoding: each head looks at one fixed displacement, as a tap of a convolution does."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings.encoding import per_head, read_numbers
from convattn.encodings.quadratic import Quadratic, QuadraticFeatures, as_displacements, kernel_taps
from convattn.errors import ArgumentError, must_be, require
from convattn.grid import Displacements

_ALPHA = 800.0
"""Sharpness in 1/pixel² at which a weight one pixel off the centre, e^−α, is zero even in float64."""


@final
class Shift(QuadraticFeatures):
    """Hard heads: all attention of head h is at the displacement Δ_h, or at the key nearest to it.

    The score is −α‖δ − Δ_h‖² with α = 800, where e^{−α} is exactly zero in every dtype. So a row of attention is
    one-hot to the last bit, and a layer of such heads is a convolution. The displacements are integers, fixed when the
    encoding is made; there are no parameters. `soften` gives heads that can learn.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1: the limit of eq. 9 for α → ∞.

    Attributes:
        displacements: Δ_h in pixels, one integer per axis, for each head.

    Example:
        >>> Shift(9, 2).displacements[:4]
        ((-1, -1), (-1, 0), (-1, 1), (0, -1))
    """

    centre_argument = "displacements"

    def __init__(
        self,
        num_heads: int,
        dims: int,
        *,
        displacements: Sequence[Sequence[int]] | Sequence[int] | None = None,
    ) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            displacements: Δ_h in pixels, (heads, dims) integers, or (dims,) for all heads; None takes the taps of a
                kernel with as many taps as there are heads, of the same odd size K along each axis, row by row around
                the query.

        Raises:
            ArgumentError: A size or a displacement is not an integer in range, or the number of heads is not k ** dims
                with an odd k and no displacements are given.
            ShapeError: The displacements are of another shape.
        """
        super().__init__(num_heads, dims)
        if displacements is None:
            displacements = kernel_taps(self.num_heads, self.dims)
        if displacements is None:
            taps = "odd" if dims == 1 else f"k ** {dims} with an odd k"
            expected = f"{taps} unless displacements are given"
            raise ArgumentError(must_be("num_heads", expected, num_heads))
        numbers = read_numbers("displacements", displacements, (self.num_heads, self.dims))
        is_whole = numbers == numbers.round()
        require(is_whole.all(), "displacements", "integers", displacements)
        self.fixed_displacements = as_displacements(numbers)

    @property
    def displacements(self) -> Displacements:
        """Δ_h in pixels, for each head; to change them, make another encoding."""
        assert self.fixed_displacements is not None
        return self.fixed_displacements

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses a sharpness or centres, which would have no effect."""
        if name in ("sharpness", "centres"):
            raise ArgumentError(
                f"Shift has no {name} to assign, its heads are hard: soften them first, as in layer.encoding ="
                " layer.encoding.soften(5.0)"
            )
        super().__setattr__(name, value)

    def options(self) -> dict[str, Any]:
        """Returns displacements."""
        return {"displacements": list(map(list, self.displacements))}

    def extra_repr(self) -> str:
        """Returns the sizes, and displacements other than the default."""
        text = f"num_heads={self.num_heads}, dims={self.dims}"
        displacements = list(self.displacements)
        if displacements != kernel_taps(self.num_heads, self.dims):
            text += f", displacements={displacements}"
        return text

    def soften(self, sharpness: float) -> Quadratic:
        """Makes heads of finite sharpness, which can learn, with the same centres.

        Args:
            sharpness: α > 0 in 1/pixel²; at 5 a head of an image spends at most 2.7 % of its attention off its centre.

        Returns:
            A new encoding on the default device, in the default dtype. Assign it in place of this one, moved to the
            layer's: `layer.encoding = layer.encoding.soften(5.0).to(device)`.

        Raises:
            ArgumentError: The sharpness is not a positive finite number.
        """
        return Quadratic(self.num_heads, self.dims, centres=self.displacements, sharpness=sharpness)

    def axis_scores(
        self, displacement: Float[Tensor, "dims *points"]
    ) -> Float[Tensor, "heads dims *points"]:
        """Scores displacements along each axis."""
        # filled there, or each call would copy numbers to a GPU
        places = [displacement.new_full((1,), along) for along in chain(*self.displacements)]
        centres = torch.cat(places).unflatten(0, (-1, self.dims))
        offset = displacement - per_head(centres, displacement)
        return -_ALPHA * offset**2
