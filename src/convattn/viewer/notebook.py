"""`convattn.view`: the page of a network in a notebook."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError
from convattn.viewer.build import build_scene
from convattn.viewer.exhibit import Exhibit
from convattn.viewer.page import page_html

LARGEST = 16 * 2**20
"""Bytes that the tensors of a page may have that is stored in a notebook."""

_LONGEST = 80
"""Characters of a title that are printed."""


@dataclass(frozen=True)
class NotebookPage:
    """A page that a notebook shows as the output of a cell."""

    title: str  # Its title
    page: str  # Its HTML, with everything inside

    def __repr__(self) -> str:
        """Returns what stands where no HTML is shown."""
        return f"<attention maps: {self.title[:_LONGEST]}>"

    def _repr_html_(self) -> str:
        """Returns the page in a sandboxed frame."""
        return (
            f'<iframe title="Attention maps: {html.escape(self.title)}" loading="lazy"'
            ' sandbox="allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"'
            ' style="width: 100%; height: 80vh; min-height: 30rem; border: 0; display: block"'
            f' srcdoc="{html.escape(self.page)}"></iframe>'
        )


def view(
    model: nn.Module | Exhibit | Sequence[Exhibit],
    images: Float[Tensor, "images channels rows cols"] | None = None,
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    layers: str | Sequence[str] | None = None,
    title: str = "",
) -> NotebookPage:
    """Shows where the heads of a network look, in a notebook: as the last line of a cell, or by `display`.

    The page holds the maps and needs no kernel: it also works on the page that nbconvert makes, and on another day. A
    notebook would grow by more than the maps, so that these may have 16 MB.

    Args:
        model: The network; or exhibits, which bring their images, to be shown side by side.
        images: Prepared images, on the network's device.
        mean: Mean per channel that was taken from pixels between 0 and 1; () if unknown.
        std: Standard deviation per channel, by which they were then divided; () if unknown.
        layers: Names of the layers to show, or patterns as in `fnmatch`; None shows all that can be read.
        title: Title of the page; "" takes the network's class.

    Returns:
        What a notebook shows as the page.

    Raises:
        ArgumentError: Images are missing, do not fit the network, or are given beside exhibits; or no layer has such a
            name.
        SceneSizeError: The maps are too large; take fewer images, or name layers.
        UnsupportedModelError: The network has no attention that can be read.

    Example:
        >>> import torch
        >>> from convattn import AttentionNet
        >>> view(AttentionNet(width=8, depth=1, heads=4, ffn=8), torch.zeros(1, 3, 8, 8))
        <attention maps: AttentionNet>
    """
    if isinstance(model, nn.Module):
        if images is None:
            raise ArgumentError(
                "images are missing: give the prepared images that the network is to see"
            )
        model = Exhibit(model, images, mean=mean, std=std, layers=layers)
    elif images is not None or layers is not None or len(mean) or len(std):
        raise ArgumentError(
            "images, mean, std and layers must be left out, because exhibits bring theirs"
        )
    scene = build_scene(model, title=title, largest=LARGEST)
    return NotebookPage(scene.header["title"], page_html(scene))
