"""The classes of layers that can be converted, each list once, and how a class is named."""

from torch import nn

from convattn.layers import (
    GatedRelativeAttention1d,
    GatedRelativeAttention2d,
    GatedRelativeAttention3d,
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
AnyConvolution = Convolution | TransposedConvolution

CONVOLUTIONS: dict[int, type[Convolution]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED_CONVOLUTIONS: dict[int, type[TransposedConvolution]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
SUPPORTED_CONVOLUTIONS: dict[type[nn.Module], int] = {
    kind: dims for kinds in (CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS) for dims, kind in kinds.items()
}
"""The modules that `conv_to_attention` takes, with their number of axes. Subclasses may compute something else."""

PLAIN_ATTENTION: dict[int, type[RelativeAttention]] = {
    kind.dims: kind for kind in (RelativeAttention1d, RelativeAttention2d, RelativeAttention3d)
}
GATED_ATTENTION: dict[int, type[RelativeAttention]] = {
    kind.dims: kind for kind in (GatedRelativeAttention1d, GatedRelativeAttention2d, GatedRelativeAttention3d)
}
ATTENTION_LAYERS: tuple[type[RelativeAttention], ...] = (*PLAIN_ATTENTION.values(), *GATED_ATTENTION.values())
"""The attention layers of this library. Subclasses may compute something else."""


def full_name(kind: type) -> str:
    """Returns the name of a class with that of the file that defines it."""
    return f"{kind.__module__}.{kind.__qualname__}"
