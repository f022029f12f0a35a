"""Small vision transformers, and the convolution that their heads are read as, computed without the library."""

import timm
import torch
from torch import nn
from torch.nn import functional

from convattn.budget import roundings
from convattn.heads import GatedPatchAttention, PatchAttention

GRID = (5, 7)
VITS = {
    "3 heads of width 7": {"embed_dim": 21, "num_heads": 3},
    "9 heads of width 2": {"embed_dim": 18, "num_heads": 9},
    "12 heads of width 2": {"embed_dim": 24, "num_heads": 12},
    "registers": {"embed_dim": 18, "num_heads": 9, "reg_tokens": 2},
    "patches alone": {"embed_dim": 18, "num_heads": 9, "class_token": False, "global_pool": "avg"},
    "queries normalised": {"embed_dim": 18, "num_heads": 9, "qk_norm": True},
    "no biases": {"embed_dim": 18, "num_heads": 9, "qkv_bias": False, "proj_bias": False},
    "normalised after": {
        "embed_dim": 18,
        "num_heads": 9,
        "block_fn": timm.models.vision_transformer.ResPostBlock,
        "init_values": 0.5,
    },
    "two beside one another": {
        "embed_dim": 18,
        "num_heads": 9,
        "block_fn": timm.models.vision_transformer.ParallelThingsBlock,
    },
}


def vit(grid=GRID, **options):
    """A vision transformer of timm with random weights, biases too."""
    torch.manual_seed(0)
    sizes = {
        "img_size": (4 * grid[0], 4 * grid[1]),
        "patch_size": 4,
        "depth": 2,
        "num_classes": 5,
        "mlp_ratio": 2,
    }
    network = timm.models.VisionTransformer(**{**sizes, **options}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return network


def pixels(grid=GRID, images=2):
    return torch.randn(
        images, 3, 4 * grid[0], 4 * grid[1], generator=torch.Generator().manual_seed(1)
    )


def attentions(network):
    return [
        module
        for module in network.modules()
        if isinstance(module, PatchAttention | GatedPatchAttention)
    ]


def tokens(network, attention):
    """Random tokens for a layer of the network."""
    count = attention.prefix + GRID[0] * GRID[1]
    return torch.randn(2, count, network.embed_dim, generator=torch.Generator().manual_seed(2))


def kernel_of(value, output, heads, taps):
    """Σ over the heads at each tap of W_out W_val, and the bias, by plain loops in float64."""
    outputs, inner = output.weight.shape
    width = inner // heads
    weight = torch.zeros(outputs, value.in_features, *taps, dtype=torch.float64)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        matrix = output.weight[:, part].double() @ value.weight[part].double()
        row, col = (
            divmod(head, taps[1])
            if head < taps[0] * taps[1]
            else ((taps[0] - 1) // 2, (taps[1] - 1) // 2)
        )
        weight[:, :, row, col] += matrix
    bias = (
        torch.zeros(outputs, dtype=torch.float64) if output.bias is None else output.bias.double()
    )
    return (
        weight,
        bias if value.bias is None else bias + output.weight.double() @ value.bias.double(),
    )


def convolved(tokens, kernel, prefix, grid=GRID, **padding):
    """Patches convolved, in the dtype of the tokens."""
    weight, bias = (part.to(tokens.dtype) for part in kernel)
    image = tokens[:, prefix:].mT.unflatten(-1, grid)
    sides = [side for size in weight.shape[:1:-1] for side in ((size - 1) // 2, size // 2)]
    return functional.conv2d(functional.pad(image, sides, **padding), weight, bias).flatten(2).mT


def convolved_by_heads(attention, tokens, heads, taps):
    """What the heads of a layer give as a convolution: in float64, and in the tokens' dtype with several roundings."""

    def compute(value, output, tokens):
        return convolved(tokens, kernel_of(value, output, heads, taps), attention.prefix)

    given = (attention.value, attention.output)
    return compute(*given, tokens.double()), roundings(compute, *given, tokens)


def convolutions(network):
    return [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
