"""Networks for inference only: attention weights and filters are computed once, in advance."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module

from convattn.convert.network_runs import Images, Inputs, copy_network, read_arguments, run_copy
from convattn.convert.surgery import first_change, graft, require_network
from convattn.convert.taps import CONVOLUTIONS, convolution
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import FrozenAttention, RelativeAttention
from convattn.wording import ITSELF


def freeze(model: nn.Module, images: Images) -> nn.Module:
    """Copies a network, or one layer, for fast inference on images of one size.

    Normally a layer computes its softmax or its filters in every call. In the copy, each attention layer without
    content is a `FrozenAttention`, which keeps them for the sizes that it is given when the network runs on `images`.
    Any number of images is fine; other sizes raise an error. Frozen layers have no parameters and stay on their device.
    Fixed heads (`Shift`) that are the taps of the layer's window become the convolution of torch that they are, for
    images of any size, with a weight that does not learn, where zeros pad both sides alike and no other path is asked
    for. Layers whose scores depend on content, and those that the
    images do not reach, are copied unchanged.

    Save the network itself, not the frozen copy, and freeze it again after loading.

    Args:
        model: A network with attention layers, or such a layer; it is not changed.
        images: Images of the size to prepare for, or a tuple or mapping of the network's arguments.

    Returns:
        The copy, in evaluation mode.

    Raises:
        ArgumentError: An argument has another type, or the network does not accept the images.
        ConversionError: The images reach no attention layer without content.
        UnsupportedModelError: The network cannot be copied, or a layer has hooks or a method that was replaced on it.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer, images = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic"), torch.randn(2, 3, 11, 13)
        >>> frozen = freeze(layer, images)
        >>> torch.dist(frozen(images), layer(images)).item() < 1e-4
        True
    """
    require_network("model", model)
    arguments = read_arguments(model, images, may_draw=False)
    names = []  # of the attention layers without content
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, RelativeAttention) and not module.needs_content():
                names.append(name)
    inputs = Inputs(names)
    run_copy(model, [arguments], inputs.watch)
    if not inputs.shapes:
        raise ConversionError("cannot freeze: the images reach no attention layer without content")
    copied = copy_network(model).eval()
    frozen: dict[nn.Module, nn.Module] = {}
    for name, several in inputs.shapes.items():
        layer: Any = copied.get_submodule(name)
        reason = first_change(layer)
        if reason is not None:
            raise UnsupportedModelError(f"cannot freeze {name or ITSELF}: {reason}")
        sizes = dict.fromkeys(shape[2:] for shape in several)
        with torch.no_grad(), _reparametrize_module(layer, inputs.weights[name]):
            frozen[layer] = _frozen_attention(layer, sizes)
    return graft(copied, frozen)


def _frozen_attention(layer: RelativeAttention, sizes: Iterable[tuple[int, ...]]) -> nn.Module:
    """Freezes a layer in evaluation mode."""
    window = layer.window_convolution()
    if window is None:
        return FrozenAttention(layer, sizes)
    frozen = convolution(
        CONVOLUTIONS[layer.dims],
        layer.weight.detach().clone(),
        copy.deepcopy(layer.bias),
        stride=layer.stride,
        padding=window.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    return frozen.requires_grad_(False).eval()
