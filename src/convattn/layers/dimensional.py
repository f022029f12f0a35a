"""Relative self-attention in one, two and three dimensions."""

from typing import final

from convattn.layers.relative import RelativeAttention


@final
class RelativeAttention1d(RelativeAttention):
    """Relative self-attention on sequences (batch, channels, positions); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> RelativeAttention1d(3, 5, 2, "sinusoidal")(torch.zeros(7, 3, 11)).shape
        torch.Size([7, 5, 11])
    """

    dims = 1


@final
class RelativeAttention2d(RelativeAttention):
    """Relative self-attention on images (batch, channels, rows, cols); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic", kernel_size=3, stride=2, padding=1)
        >>> layer(torch.zeros(7, 3, 11, 13)).shape
        torch.Size([7, 5, 6, 7])
    """

    dims = 2


@final
class RelativeAttention3d(RelativeAttention):
    """Relative self-attention on volumes (batch, channels, depth, rows, cols); see `RelativeAttention`.

    Example:
        >>> import torch
        >>> RelativeAttention3d(2, 3, 2, "distance")(torch.zeros(1, 2, 3, 5, 7)).shape
        torch.Size([1, 3, 3, 5, 7])
    """

    dims = 3
