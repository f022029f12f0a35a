"""What a network makes of many images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

_AT_ONCE = 500
"""Images that go through the network together."""


@torch.inference_mode()
def class_scores(
    network: nn.Module, images: Float[Tensor, "images channels rows cols"]
) -> Float[Tensor, "images classes"]:
    """Returns a network's scores of normalised images, a few hundred of them at a time."""
    return torch.cat([network(part) for part in images.split(_AT_ONCE)])
