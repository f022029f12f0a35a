"""Networks for inference alone: every attention layer with all that does not depend on the images made beforehand."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from convattn.convert.copies import copy_network
from convattn.convert.network.grafting import graft
from convattn.convert.network.running import Arguments, read_arguments, run
from convattn.errors import ArgumentError, ConversionError, must_be_a
from convattn.layers import FrozenAttention, RelativeAttention

__all__ = ["freeze"]


def freeze(model: nn.Module, images: Tensor | tuple[Any, ...] | Mapping[str, Any]) -> nn.Module:
    """Makes a copy of a network, or of one layer, for inference on images of one size.

    A layer computes its softmax, filters or kernel in every call, because nothing is kept between calls. In the copy
    each attention layer without content is a `FrozenAttention`, which holds them for the sizes that the given images
    reach it with; other numbers of images are fine, other sizes are refused. Frozen layers have no parameters and
    stay on their device. Layers whose scores depend on content, and layers that the images do not reach, stay as they
    are.

    Save the network itself, not the frozen copy, and freeze it again after loading.

    Args:
        model: A network with attention layers, or such a layer; it is not changed.
        images: Images, or a tuple or a mapping of its arguments, of the size that is to be computed.

    Returns:
        The copy, in evaluation mode.

    Raises:
        ArgumentError: An argument is of another kind, or the network does not take the images.
        ConversionError: The images reach no attention layer without content.
        UnsupportedModelError: The network cannot be copied.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer, images = RelativeAttention2d(3, 5, 9, "quadratic"), torch.randn(2, 3, 11, 13)
        >>> frozen = freeze(layer, images)
        >>> torch.dist(frozen(images), layer(images)).item() < 1e-4
        True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    if images is None:
        raise ArgumentError(must_be_a("images", "a tensor, a tuple of arguments or a mapping of them", images))
    given = read_arguments(model, images)
    made = copy_network(model).eval()
    met = _sizes_met(made, given)
    if not met:
        raise ConversionError("cannot freeze: the images reach no attention layer whose scores are free of content")
    return graft(made, {layer: FrozenAttention(layer, sizes) for layer, sizes in met.items()})


def _sizes_met(network: nn.Module, given: Arguments) -> dict[RelativeAttention, dict[tuple[int, ...], None]]:
    """Runs a copy and notes the sizes of images that each attention layer without content is given, in order."""
    met: dict[RelativeAttention, dict[tuple[int, ...], None]] = {}

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, RelativeAttention)
        if not layer.needs_content():
            met.setdefault(layer, {})[tuple(arguments[0].shape[2:])] = None

    layers = [module for module in network.modules() if isinstance(module, RelativeAttention)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        run(network, given)
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(
            f"images must be what the network takes, but on those of shape {given.shapes()} it raised"
            f" {type(error).__name__}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return met
