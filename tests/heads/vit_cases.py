"""Small vision transformers."""

import timm
import torch

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
