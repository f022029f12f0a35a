"""Write an encoding of your own: one method, a name to save it by, and a plain function instead of a class."""

import tempfile
from pathlib import Path

import torch

import convattn


class Ring(convattn.Encoding):
    """Score −(‖δ‖ − r_h)²: a head looks at a ring of radius r_h around the query."""

    def __init__(self, num_heads: int, dims: int) -> None:
        """Starts with the radii 1, 2, … pixels."""
        super().__init__(num_heads, dims)
        self.radii = torch.nn.Parameter(torch.arange(1.0, num_heads + 1))

    def score(self, displacement: torch.Tensor) -> torch.Tensor:
        """Scores displacements (*points, dims): (heads, *points)."""
        lengths = displacement.norm(dim=-1)
        return -((lengths - self.radii.view(-1, *(1,) * lengths.ndim)) ** 2)


torch.manual_seed(0)
convattn.register_encoding("ring", Ring)
images = torch.randn(2, 3, 17, 13)
layer = convattn.RelativeAttention2d(
    3, 8, num_heads=4, encoding="ring", kernel_size=3, padding=1
).eval()
print(layer.plan(images.shape).reason)
print(
    "attention of the second head along a row:",
    layer.attention((17, 13))[1, 8, 6, 9].detach().round(decimals=2),
)

with tempfile.TemporaryDirectory() as place:
    loaded = convattn.load_network(convattn.save_network(layer, Path(place) / "layer"))


def ring(displacement: torch.Tensor) -> torch.Tensor:
    """Scores as a plain function: the same, with radii that are not trained."""
    radii = torch.arange(1.0, 5.0).view(-1, *(1,) * (displacement.ndim - 1))
    return -((displacement.norm(dim=-1) - radii) ** 2)


function = convattn.RelativeAttention2d(
    3, 8, num_heads=4, encoding=ring, kernel_size=3, padding=1
).eval()
function.values, function.bias = layer.values, layer.bias

assert torch.equal(loaded(images), layer(images))
assert torch.equal(function(images), layer(images))
