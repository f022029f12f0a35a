"""The heads' matrices W_h, held whole or as a product of two narrow ones."""

from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["FactoredValues", "MergedValues"]


@final
class MergedValues(nn.Module):
    """One whole matrix per head, W_h = `weight[h]`; together one D_out × (N_h·D_in) matrix.

    Attributes:
        weight: (heads, outputs, inputs // groups); U(−b, b) with b = 1/√(heads·inputs/groups), as `nn.ConvNd` draws its
            weight when a head stands for a tap.
    """

    def __init__(self, num_heads: int, inputs: int, outputs: int, groups: int = 1) -> None:
        """Draws the matrices.

        Args:
            num_heads: Number of heads.
            inputs: D_in, channels in.
            outputs: D_out, channels out.
            groups: Number of blocks of each matrix, dividing inputs and outputs.
        """
        super().__init__()
        bound = (num_heads * inputs // groups) ** -0.5
        self.weight = nn.Parameter(torch.empty(num_heads, outputs, inputs // groups).uniform_(-bound, bound))

    def lay_out(self, order: str) -> None:
        """Orders the numbers in memory, not in the tensor: a path that needs another order copies them at each call.

        Args:
            order: "heads", "outputs" and "inputs", the slowest first: "outputs inputs heads" as a convolution holds its
                weight, "outputs heads inputs" for softmax along each axis, or for that with groups as they are,
                "heads outputs inputs".
        """
        held = rearrange(self.weight.data, f"heads outputs inputs -> {order}").contiguous()
        self.weight.data = rearrange(held, f"{order} -> heads outputs inputs")

    def maps(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h."""
        return self.weight

    def factors(self) -> tuple[Float[Tensor, "heads outputs channels_per_group"], None]:
        """Returns W_h, and that no second matrix follows."""
        return self.weight, None


@final
class FactoredValues(nn.Module):
    """Each head's matrix as a product, W_h = W_out^(h) W_val^(h), of rank at most D_h in each group.

    Attributes:
        value: W_val, (heads, groups·D_h, inputs // groups).
        output: W_out, (heads, outputs, D_h).
    """

    def __init__(self, num_heads: int, inputs: int, outputs: int, groups: int = 1, *, head_width: int) -> None:
        """Draws the matrices so that the output varies as with `MergedValues`.

        Args:
            num_heads: Number of heads.
            inputs: D_in, channels in.
            outputs: D_out, channels out.
            groups: Number of blocks of each matrix, dividing inputs and outputs.
            head_width: D_h ≥ 1, width of each head in each group.
        """
        super().__init__()
        self.groups, self.head_width = groups, head_width
        inner, outer = (inputs // groups) ** -0.5, (num_heads * head_width) ** -0.5
        self.value = nn.Parameter(torch.empty(num_heads, groups * head_width, inputs // groups).uniform_(-inner, inner))
        self.output = nn.Parameter(torch.empty(num_heads, outputs, head_width).uniform_(-outer, outer) * 3**0.5)

    def factors(
        self,
    ) -> tuple[Float[Tensor, "heads inner channels_per_group"], Float[Tensor, "heads outputs width"]]:
        """Returns W_val and W_out."""
        return self.value, self.output

    def maps(self) -> Float[Tensor, "heads outputs channels_per_group"]:
        """Returns W_h = W_out^(h) W_val^(h), group by group."""
        product = einsum(
            rearrange(self.output, "heads (groups outputs) width -> heads groups outputs width", groups=self.groups),
            rearrange(self.value, "heads (groups width) channels -> heads groups width channels", groups=self.groups),
            "heads groups outputs width, heads groups width channels -> heads groups outputs channels",
        )
        return rearrange(product, "heads groups outputs channels -> heads (groups outputs) channels")
