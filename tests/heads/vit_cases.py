"""Small vision transformers."""

import timm
import torch

GRID = (5, 7)


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
