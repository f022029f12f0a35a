"""Floating-point operations of the networks, in closed form."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one forward pass on one image; a multiplication and its addition count as two.

    Only matrix products are counted: not the softmax, the normalisations, the biases or the activations. Mixing is
    counted as in the paper, with N x N weights per head; layers on a cheaper path take fewer.
    """

    linear: int  # Linear maps of channels, the heads' value matrices and convolutions included
    mixing: int = 0  # Weighted means of pixels, A_h x
    content_scores: int = 0  # Products of queries and keys, q·k
    position_scores: int = 0  # Products of queries and relative positions, q·r_δ

    @property
    def total(self) -> int:
        """All of them together."""
        return self.linear + self.mixing + self.content_scores + self.position_scores


def matmul_flops(rows: int, inner: int, cols: int) -> int:
    """Returns the operations of a (rows x inner) by (inner x cols) matrix product, ``2 · rows · inner · cols``.

    Example:
        >>> matmul_flops(2, 3, 5)
        60
    """
    return 2 * rows * inner * cols
