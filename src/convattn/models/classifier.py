"""The base of the image classifiers: what they were made with, and how their operations are counted."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convattn.grid import whole_number
from convattn.layers import NormalisedConv, RelativeAttention
from convattn.structure import copied_module, is_own_hook


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one forward pass on one image; a multiplication and its addition count as two.

    Only matrix products are counted: not the softmax, the normalisations, the biases or the activations. Mixing is
    counted as in the paper, with N x N weights per head, and none of fixed heads; layers on a cheaper path take fewer.
    """

    linear: int  # Linear maps of channels, the heads' value matrices and convolutions included
    mixing: int = 0  # Weighted means of pixels, A_h x
    content_scores: int = 0  # Products of queries and keys, q·k
    position_scores: int = 0  # Products of queries and relative positions, q·r_δ

    @property
    def total(self) -> int:
        """All of them together."""
        return self.linear + self.mixing + self.content_scores + self.position_scores


class ImageClassifier(nn.Module):
    """A network that knows the arguments that it was made with, so that it can be saved, loaded and copied.

    Attributes:
        arguments: The constructor's arguments as JSON types, those with their defaults as well.
    """

    arguments: dict[str, Any]

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """Records the arguments of `__init__`."""
        network = super().__new__(cls)
        given = inspect.signature(cls.__init__).bind_partial(network, *values, **named)
        given.apply_defaults()
        given.arguments.pop("self")
        network.arguments = _plain(given.arguments)
        return network

    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, from the sizes of its layers alone.

        Args:
            image_size: Rows and columns of the image; of an `AttentionNet` or `ConvNet` divisible by the patch.

        Returns:
            Operations of the linear maps, of convolutions with the taps on the padding, of the mixing and of the
            scores; mixing and scores with N x N weights, that of a `NormalisedConv` too.
        """
        counts = Counter[str]()
        network = copied_module(self).to(device="meta", dtype=torch.float32).eval()
        inside: set[nn.Module] = set()
        for module in network.modules():
            # those of the user would see tensors without values
            module._forward_hooks.clear()
            for key, hook in [*module._forward_pre_hooks.items()]:
                if not is_own_hook(hook):
                    del module._forward_pre_hooks[key]
            weight = getattr(module, "weight", None)
            if isinstance(module, RelativeAttention | NormalisedConv):
                inside.update(module.modules())
                if isinstance(module, RelativeAttention):
                    module.impl = "reference"  # the other paths look at the weights
                module.register_forward_hook(partial(_count_attention, counts))
            elif module not in inside and isinstance(weight, Tensor) and weight.ndim > 1:
                module.register_forward_hook(partial(_count_linear, counts))
        channels = self.arguments["in_channels"]
        network(torch.empty(1, channels, image_size, image_size, device="meta"))
        return FlopCount(**counts)


def _count_linear(counts: Counter[str], layer: Any, _: Any, output: Tensor) -> None:
    counts["linear"] += 2 * output.numel() * layer.weight[0].numel()


def _count_attention(
    counts: Counter[str], layer: Any, inputs: tuple[Tensor], output: Tensor
) -> None:
    queries, keys = output[0, 0].numel(), inputs[0][0, 0].numel()
    value, narrow, _ = layer.values.factors()
    values = value.numel() + (0 if narrow is None else narrow.numel())
    counts["linear"] += 2 * queries * values
    encoding, content = getattr(layer, "encoding", None), getattr(layer, "content", None)
    if getattr(encoding, "fixed_displacements", None) is None:
        counts["mixing"] += 2 * queries * keys * layer.num_heads * layer.in_channels
    if content is None:
        return
    products = 2 * queries * keys * content.key.out_features
    counts["linear"] += 2 * (queries + keys) * content.key.weight.numel()
    counts["content_scores"] += products
    if content.uses_position:
        counts["position_scores"] += products


def require_whole(**sizes: object) -> None:
    """Raises ArgumentError, which names the argument, unless every size is an integer of at least 1."""
    for name, size in sizes.items():
        whole_number(name, size)


def _plain(value: Any) -> Any:
    """Copies a mapping as a dict and numbers of numpy or torch as those of Python, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
