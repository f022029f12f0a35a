"""`convattn.view`: takes what a user has, and returns the widget that shows it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError
from convattn.viewer.build import build_scene
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.live import Live
from convattn.viewer.scene import Scene, SceneSizeError
from convattn.viewer.widget import make_widget

COPY = 16 * 2**20
"""Bytes that the copy in the notebook may hold."""


def view(
    model: nn.Module | Exhibit | Sequence[Exhibit],
    images: Float[Tensor, "images channels rows cols"] | None = None,
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    prepare: Callable[[Any], Tensor] | None = None,
    layers: Sequence[str] | None = None,
    title: str = "",
    copy: bool = True,
) -> Any:
    """Shows where the heads of a network look, in a notebook: as the last line of a cell, or by `display`.

    The page asks the kernel for rows of attention weights while it runs. Below it stands a copy of the page with the
    maps inside, which is seen where no kernel runs: on the page that nbconvert makes, and in the notebook on another
    day. It is left out beyond 16 MB; then it holds the first image alone, or nothing.

    Args:
        model: The network; or exhibits, which bring their images, to be shown side by side.
        images: Prepared images, on the network's device.
        mean: Mean per channel that was taken from pixels between 0 and 1; () if unknown.
        std: What they were divided by then.
        prepare: Turns an RGB picture of pillow into what the network takes, for own pictures.
        layers: Names of the layers to show; None shows all that can be read.
        title: Title of the page; "" takes the network's class.
        copy: Whether to write the copy.

    Returns:
        The widget, an anywidget.AnyWidget.

    Raises:
        ArgumentError: Images are missing, or do not fit the network.
        UnsupportedModelError: The network has no attention that can be read.
        MissingDependencyError: anywidget is not installed.

    Example:
        >>> import torch
        >>> from convattn import AttentionNet
        >>> view(AttentionNet(width=8, depth=1, heads=4, ffn=8), torch.zeros(1, 3, 8, 8))
        <attention maps: AttentionNet>
    """
    if isinstance(model, nn.Module):
        if images is None:
            raise ArgumentError("images are missing: give the prepared images that the network is to see")
        chosen = None if layers is None else tuple(layers)
        shown = [Exhibit(model, images, mean=mean, std=std, layers=chosen)]
    else:
        shown = [model] if isinstance(model, Exhibit) else list(model)
        if images is not None:
            raise ArgumentError("images must be None, because exhibits bring theirs")
    live = Live(shown, prepare=[prepare] * len(shown) if prepare else (), title=title)
    return make_widget(live, _copy(shown, live.title) if copy else None)


def _copy(shown: Sequence[Exhibit], title: str) -> Scene | None:
    """Makes the scene of the copy, of all images or the first; None if it would be too large."""
    for exhibits in (shown, [replace(one, images=one.images[:1]) for one in shown]):
        try:
            return build_scene(exhibits, title=title, largest=COPY)
        except SceneSizeError:
            continue
    return None
