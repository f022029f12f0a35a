"""The heads' matrices W_h, held whole or as a product of two narrow ones."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.functional import HeadMaps


@final
class MergedValues(nn.Module):
    """One whole matrix W_h per head, together one D_out × (N_h·D_in) matrix.

    Calling the module returns `weight`, and runs hooks such as those of pruning and weight normalisation.

    Attributes:
        weight: (heads, outputs, inputs // groups), W_h = `weight[h]`; or, held as the kernel of a convolution,
            `(outputs, inputs // groups, *kernel_size)` with the heads as its taps, row by row. U(−b, b) at the start
            with b = 1/√(heads·inputs/groups), as `nn.ConvNd` draws its weight.
        kernel_size: Taps per axis of that kernel, or None.
        groups: Number of blocks of each matrix.
    """

    def __init__(
        self,
        num_heads: int,
        inputs: int,
        outputs: int,
        groups: int = 1,
        *,
        kernel_size: tuple[int, ...] | None = None,
    ) -> None:
        """Draws the matrices.

        Args:
            num_heads: Number of heads.
            inputs: D_in, channels in.
            outputs: D_out, channels out.
            groups: Number of blocks of each matrix, dividing inputs and outputs.
            kernel_size: Taps per axis, as many as heads in all, to hold the matrices as a kernel; None holds one after
                the other.
        """
        super().__init__()
        self.kernel_size, self.groups = kernel_size, groups
        matrix = (outputs, inputs // groups)
        bound = (num_heads * inputs // groups) ** -0.5
        shape = (num_heads, *matrix) if kernel_size is None else (*matrix, *kernel_size)
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def forward(self) -> Float[Tensor, "..."]:
        """Returns the matrices as they are held; UnsupportedModelError if a module computes them in each call."""
        if self.weight is None:
            raise UnsupportedModelError(
                "the weight of this layer is computed in each call of the module around it, and exists in it alone"
            )
        return self.weight

    def extra_repr(self) -> str:
        """Returns the shape of the weight."""
        return "" if self.weight is None else f"weight of {tuple(self.weight.shape)}"

    def maps(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h."""
        return self() if self.kernel_size is None else self().flatten(2).movedim(-1, 0)

    def factors(self) -> HeadMaps:
        """Returns W_h as the only factor."""
        return HeadMaps(self.maps(), None, self.groups)

    def held(self, maps: Float[Tensor, "heads outputs channels_per_group"]) -> Float[Tensor, "..."]:
        """Returns matrices W_h in the form of `weight`."""
        return (
            maps
            if self.kernel_size is None
            else maps.movedim(0, -1).unflatten(-1, self.kernel_size)
        )


@final
class FactoredValues(nn.Module):
    """Each head's matrix as a product, W_h = W_out^(h) W_val^(h), of rank at most D_h in each group.

    Calling the module returns both factors, and runs hooks such as those of pruning and weight normalisation.

    Attributes:
        value: W_val, (heads, groups·D_h, inputs // groups).
        output: W_out, (heads, outputs, D_h).
    """

    def __init__(
        self, num_heads: int, inputs: int, outputs: int, groups: int = 1, *, head_width: int
    ) -> None:
        """Draws the matrices so that the output has the variance of `MergedValues`.

        Args:
            num_heads: Number of heads.
            inputs: D_in, channels in.
            outputs: D_out, channels out.
            groups: Number of blocks of each matrix, dividing inputs and outputs.
            head_width: D_h ≥ 1, width of each head in each group.
        """
        super().__init__()
        self.groups, self.head_width, self.kernel_size = groups, head_width, None
        inner = (inputs // groups) ** -0.5
        outer = (num_heads * head_width) ** -0.5
        self.value = nn.Parameter(
            torch.empty(num_heads, groups * head_width, inputs // groups).uniform_(-inner, inner)
        )
        self.output = nn.Parameter(
            torch.empty(num_heads, outputs, head_width).uniform_(-outer, outer) * 3**0.5
        )

    def forward(
        self,
    ) -> tuple[
        Float[Tensor, "heads inner channels_per_group"], Float[Tensor, "heads outputs width"]
    ]:
        """Returns W_val and W_out."""
        return self.value, self.output

    def maps(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h = W_out^(h) W_val^(h), group by group."""
        return self.factors().whole()

    def factors(self) -> HeadMaps:
        """Returns W_val and W_out."""
        value, output = self()
        return HeadMaps(value, output, self.groups)


def make_values(
    num_heads: int,
    inputs: int,
    outputs: int,
    groups: int,
    head_width: int | None,
    kernel_size: tuple[int, ...] | None,
) -> MergedValues | FactoredValues:
    """Draws the matrices of a layer: factored if a head width is given, held as a kernel if its size is given."""
    if head_width is None:
        return MergedValues(num_heads, inputs, outputs, groups, kernel_size=kernel_size)
    return FactoredValues(num_heads, inputs, outputs, groups, head_width=head_width)
