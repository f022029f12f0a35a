"""The base of the image classifiers: what they were made with, and how their operations are counted."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from convattn.encodings import Shift
from convattn.layers import NormalisedConv, RelativeAttention


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one forward pass on one image; a multiplication and its addition count as two.

    Only matrix products are counted: not the softmax, the normalisations, the biases or the activations. Mixing is
    counted as in the paper, with N x N weights per head; layers on a cheaper path take fewer.
    """

    linear: int  # Linear maps of channels, the heads' value matrices and convolutions included
    mixing: int = 0  # Weighted means of pixels, A_h x
    content_scores: int = 0  # Products of queries and keys, q·k
    position_scores: int = 0  # Products of queries and relative positions, q·r_δ

    @property
    def total(self) -> int:
        """All of them together."""
        return self.linear + self.mixing + self.content_scores + self.position_scores


_Model = TypeVar("_Model", bound="ImageClassifier")


class ImageClassifier(nn.Module):
    """A network that knows the arguments that it was made with, so that it can be saved, loaded and copied.

    Attributes:
        arguments: The constructor's arguments as JSON types, those with their defaults as well.
    """

    arguments: dict[str, Any]

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """Records the arguments of `__init__`."""
        made = super().__new__(cls)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        defaults = {one.name: one.default for one in parameters}
        given = {**defaults, **dict(zip(defaults, values, strict=False)), **named}
        made.arguments = {name: _plain(value) for name, value in given.items()}
        return made

    def flops(self, image_size: int = 32) -> FlopCount:
        """Counts the floating-point operations for one image, from the sizes of its layers alone.

        Args:
            image_size: Rows and columns of the image; of an `AttentionNet` or `ConvNet` divisible by the patch.

        Returns:
            Operations of the linear maps, of convolutions with the taps on the padding, of the mixing and of the
            scores; mixing and scores with N x N weights, that of a `NormalisedConv` too.
        """
        return _count_flops(self, image_size)

    def _copy(self: _Model, **arguments: Any) -> _Model:
        """Copies the network and gives the copy new arguments; the caller adapts its modules."""
        made = copy.deepcopy(self)
        made.arguments.update(arguments)
        return made


def _plain(value: Any) -> Any:
    """Copies a mapping as a dict and a sequence as a list, as JSON has them, and returns other values as they are."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return (
        [*map(_plain, value)]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else value
    )


def _count_flops(network: "ImageClassifier", image_size: int) -> FlopCount:
    """Runs a copy without values, and counts by the sizes of what its layers take and give."""
    counts = dict.fromkeys(("linear", "mixing", "content_scores", "position_scores"), 0)

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        counts["linear"] += 2 * output.numel() * cast(Tensor, layer.weight)[0].numel()

    def count_attention(
        layer: RelativeAttention | NormalisedConv, inputs: tuple[Tensor], output: Tensor
    ) -> None:
        queries, keys = output[0, 0].numel(), inputs[0][0, 0].numel()
        counts["linear"] += (
            2 * queries * sum(weight.numel() for weight in layer.values.parameters())
        )
        if isinstance(layer, NormalisedConv) or not isinstance(layer.encoding, Shift):
            counts["mixing"] += 2 * queries * keys * layer.num_heads * layer.in_channels
        if isinstance(layer, RelativeAttention) and layer.content is not None:
            products = 2 * queries * keys * layer.content.key.out_features
            counts["linear"] += 2 * (queries + keys) * layer.content.key.weight.numel()
            counts["content_scores"] += products
            counts["position_scores"] += products if layer.content.uses_position else 0

    empty = copy.deepcopy(network).to("meta").eval()
    attention = [
        module
        for module in empty.modules()
        if isinstance(module, RelativeAttention | NormalisedConv)
    ]
    for layer in attention:
        if isinstance(layer, RelativeAttention):
            layer.impl = "reference"  # the other paths look at the weights
        layer.register_forward_hook(count_attention)
    for module in set(empty.modules()) - {part for layer in attention for part in layer.modules()}:
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim > 1:
            module.register_forward_hook(count)
    empty(torch.empty(1, network.arguments["in_channels"], image_size, image_size, device="meta"))
    return FlopCount(**counts)
