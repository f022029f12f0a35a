"""Modules that cannot be fused into an attention layer of five outputs, each with its refusal."""

from torch import nn
from torch.nn.utils import parametrizations, prune

from convattn.errors import ArgumentError, ShapeError, UnsupportedModelError


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


class Own(nn.Linear):
    pass


WRONG_MAPS = [
    (nn.Linear(3, 5), ShapeError, "following must be a map of the layer's 5 channels, but takes 3"),
    (
        nn.Conv2d(7, 5, 1),
        ShapeError,
        "following must be a map of the layer's 5 channels, but takes 7",
    ),
    (
        nn.Linear(5, 2).double(),
        ArgumentError,
        "following must be in the layer's dtype and on its device, .* but is in torch.float64 on cpu",
    ),
    (
        nn.Linear(5, 2, device="meta"),
        ArgumentError,
        "following must be in the layer's dtype and on its device, .* but is in torch.float32 on meta",
    ),
    (
        nn.Conv2d(5, 2, 3),
        ArgumentError,
        r"following.kernel_size must be \(1, 1\), a map of single pixels, but is \(3, 3\)",
    ),
    (
        nn.Conv2d(5, 2, (1, 2)),
        ArgumentError,
        r"following.kernel_size must be \(1, 1\), .* but is \(1, 2\)",
    ),
    (
        nn.Conv2d(5, 2, 1, stride=2),
        ArgumentError,
        r"following.stride must be \(1, 1\), a map of single pixels, but is \(2, 2\)",
    ),
    (
        nn.Conv2d(5, 2, 1, padding=1),
        ArgumentError,
        r"following.padding must be \(0, 0\), a map of single pixels, but is \(1, 1\)",
    ),
    (
        nn.Conv2d(5, 5, 1, groups=5),
        ArgumentError,
        "following.groups must be 1, a map of single pixels, but is 5",
    ),
    (
        nn.Conv1d(5, 2, 1),
        UnsupportedModelError,
        "cannot fuse Conv1d with RelativeAttention2d: known are Linear and Conv2d with a kernel of one pixel",
    ),
    (nn.ReLU(), UnsupportedModelError, "cannot fuse ReLU with RelativeAttention2d: known are"),
    (
        nn.Sequential(nn.Linear(5, 2)),
        UnsupportedModelError,
        "cannot fuse Sequential with RelativeAttention2d",
    ),
    (
        nn.ConvTranspose2d(5, 2, 1),
        UnsupportedModelError,
        "cannot fuse ConvTranspose2d with RelativeAttention2d",
    ),
    (Own(5, 2), UnsupportedModelError, "cannot fuse Own with RelativeAttention2d"),
    (
        nn.LazyLinear(2),
        UnsupportedModelError,
        "cannot fuse LazyLinear: its sizes are unknown until it sees an input",
    ),
    (
        nn.LazyConv2d(2, 1),
        UnsupportedModelError,
        "cannot fuse LazyConv2d: its sizes are unknown until it sees an input",
    ),
    (
        parametrizations.weight_norm(nn.Linear(5, 2)),
        UnsupportedModelError,
        "cannot fuse ParametrizedLinear with RelativeAttention2d",
    ),
    (
        hooked(nn.Linear(5, 2)),
        UnsupportedModelError,
        "cannot fuse Linear: it has forward hooks, as in pruning; make them permanent or remove them first",
    ),
    (
        prune.random_unstructured(nn.Linear(5, 2), "weight", 0.5),
        UnsupportedModelError,
        "cannot fuse Linear: it has forward hooks, as in pruning",
    ),
]
