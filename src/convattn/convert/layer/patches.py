"""A convolution of pixels rewritten as a convolution of patches."""

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from convattn.convert.taps import require_supported
from convattn.errors import ArgumentError, UnsupportedModelError, must_be
from convattn.grid import whole_number


def patch_convolution(conv: nn.Conv2d, patch_size: int) -> nn.Conv2d:
    """Rewrites a convolution of pixels as the convolution of p × p patches that computes the same.

    With a patch's pixels as its channels, as `torch.nn.functional.pixel_unshuffle` has them,
    `patches(conv(x)) = made(patches(x))` exactly, borders included. A k × k kernel of dilation d reaches
    r = d(k − 1)/2 pixels, and so R = ⌈r/p⌉ patches: with r ≤ p a 3 × 3 kernel of p²·C_in → p²·C_out channels is
    enough, which is nine heads of attention. The tap of the patch itself has rank up to p²·min(C_in, C_out), that of a
    neighbour in the same row or column up to r·p·min(C_in, C_out), that of a corner r²·min(C_in, C_out).

    Source: `docs/networks-vit.md`.

    Args:
        conv: A convolution with an odd kernel, stride 1 and as much padding with zeros as keeps the image's size; it is
            not changed.
        patch_size: p ≥ 1, pixels along each side of a patch.

    Returns:
        The convolution of patches, of the same dtype, device and mode; groups become blocks of zeros.

    Raises:
        UnsupportedModelError: The module is not an `nn.Conv2d`, or its weights are not finite real floating point.
        ArgumentError: The convolution has another form, or the patch size is not a whole number of at least 1.

    Example:
        >>> conv, x = nn.Conv2d(2, 3, kernel_size=5, padding=2), torch.randn(1, 2, 8, 12)
        >>> made = patch_convolution(conv, 4)
        >>> made
        Conv2d(32, 48, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
        >>> made(nn.functional.pixel_unshuffle(x, 4)).shape == nn.functional.pixel_unshuffle(conv(x), 4).shape
        True
    """
    patch = whole_number("patch_size", patch_size)
    if type(conv) is not nn.Conv2d:
        raise UnsupportedModelError(
            f"cannot convert {type(conv).__name__}: patch_convolution takes nn.Conv2d itself, no other class"
        )
    require_supported(conv)
    _require_same_size(conv)
    rows, cols = (_places(size, step, patch) for size, step in zip(conv.kernel_size, conv.dilation, strict=True))
    with torch.no_grad():
        weight = _ungrouped_weight(conv)
        beyond = nn.functional.pad(weight, (0, 1, 0, 1))  # the last row and column are zeros: places outside the kernel
        taps = beyond[:, :, rows[:, :, :, None, None, None], cols[None, None, None]]
        kernel = rearrange(taps, "o c tap_row i a tap_col j b -> (o i j) (c a b) tap_row tap_col")
        outputs, inputs, *sizes = kernel.shape
        made = nn.Conv2d(
            inputs,
            outputs,
            (sizes[0], sizes[1]),
            padding=((sizes[0] - 1) // 2, (sizes[1] - 1) // 2),
            bias=conv.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        made.weight.copy_(kernel)
        if conv.bias is not None and made.bias is not None:
            made.bias.copy_(conv.bias.repeat_interleave(patch * patch))
    return made.train(conv.training)


def _require_same_size(conv: nn.Conv2d) -> None:
    """Raises ArgumentError unless the convolution keeps the image's size with zero padding and has a middle tap."""
    keeps = tuple(d * (k - 1) // 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True))
    even = any(size % 2 == 0 for size in conv.kernel_size)
    padded = conv.padding in (keeps, "same") and conv.padding_mode == "zeros"
    if even or not padded or conv.stride != (1, 1):
        expectation = "a convolution with an odd kernel, stride 1 and zero padding that keeps the image's size"
        raise ArgumentError(must_be("conv", expectation, conv))


def _places(size: int, dilation: int, patch: int) -> Tensor:
    """Returns, along one axis, the tap that leads from one pixel to another, or `size` if there is none.

    The indices have shape (patches seen, pixels of the output's patch, pixels of the patch seen).
    """
    reach = dilation * (size - 1) // 2
    far = -(-reach // patch)
    patches = torch.arange(-far, far + 1)
    pixels = torch.arange(patch)
    away = patches[:, None, None] * patch + pixels[None, None, :] - pixels[None, :, None] + reach
    return torch.where((away % dilation == 0) & (away >= 0) & (away <= 2 * reach), away // dilation, size)


def _ungrouped_weight(conv: nn.Conv2d) -> Tensor:
    """Returns the kernel without groups: blocks of it, and zeros elsewhere."""
    if conv.groups == 1:
        return conv.weight
    blocks = rearrange(conv.weight, "(groups o) c rows cols -> groups o c rows cols", groups=conv.groups)
    eye = torch.eye(conv.groups, dtype=blocks.dtype, device=blocks.device)
    spread = einsum(blocks, eye, "groups o c rows cols, groups inner -> groups o inner c rows cols")
    return rearrange(spread, "groups o inner c rows cols -> (groups o) (inner c) rows cols")
