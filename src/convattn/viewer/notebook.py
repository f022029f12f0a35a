"""`convattn.view`: takes what a user has, and returns the widget that shows it."""

import html
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, ConvAttnError, MissingDependencyError
from convattn.viewer.build import Exhibit, build_scene
from convattn.viewer.live import Live, RowsRequest
from convattn.viewer.page import page_html
from convattn.viewer.scene import Scene, SceneSizeError

VIEW = "application/vnd.jupyter.widget-view+json"
"""Output that notebooks show by their own JavaScript; pages made of notebooks load that from the network."""


def frame(page: str, mark: str) -> str:
    """Returns HTML that holds a page in a sandboxed frame."""
    return (
        f'<div data-convattn-copy="{mark}"><iframe title="Attention maps" sandbox="allow-scripts allow-downloads"'
        ' loading="lazy" style="width: 100%; height: 80vh; min-height: 30rem; border: 0; display: block"'
        f' srcdoc="{html.escape(page)}"></iframe></div>'
    )


@cache
def _widget_class() -> Callable[[Live, str | None], Any]:
    """Makes the class when it is first needed, because anywidget is optional.

    Shown at the end of a cell, a widget writes two outputs: the live page, and below it a copy with everything inside.
    The live page hides the copy; where no kernel runs, as in a page that nbconvert made, only the copy is seen.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise MissingDependencyError("anywidget", "view") from None

    script = resources.files("convattn.viewer") / "static/js/widget.js"

    class Widget(anywidget.AnyWidget):
        """Answers what the page asks."""

        _esm = script.read_text(encoding="utf-8")
        copy = traitlets.Unicode().tag(sync=True)

        def __init__(self, shown: Live, still: str | None) -> None:
            super().__init__(copy=uuid.uuid4().hex)
            self._shown, self._still = shown, still
            self.on_msg(_answer)

        def __repr__(self) -> str:
            return f"<attention maps: {self._shown.title}>"

        def _ipython_display_(self) -> None:
            from IPython.display import display

            bundle = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id}}
            blank = {"text/html": "<!-- the page needs a kernel -->", "text/plain": repr(self)}
            display({**bundle, **blank}, raw=True)
            if self._still is not None:
                display({"text/html": frame(self._still, self.copy), "text/plain": repr(self)}, raw=True)

    return Widget


def _answer(widget: Any, content: Any, buffers: list[Any]) -> None:
    """Answers one message; an error is an answer, too, or the page would wait for ever. Ignores unknown messages."""
    if not isinstance(content, dict):
        return
    shown: Live = widget._shown
    answer: dict[str, Any] = {"id": content.get("id")}
    data = []
    try:
        match content.get("kind"):
            case "page":
                answer["text"] = page_html(shown.title, entry="remote.js", start="awaitNotebook();")
                data = [shown.scene_bytes()]
            case "rows":
                data = [shown.rows(RowsRequest.read(content["asked"]))]
            case "upload":
                data = [shown.add(bytes(buffers[0]), str(content["name"]))]
            case kind:
                answer["error"] = f"there is no {kind!r}"
    except ConvAttnError as error:
        answer["error"] = str(error)
    except Exception as error:  # noqa: BLE001 - the page would wait for ever
        answer["error"] = f"{type(error).__name__}: {error}"
    widget.send(answer, data)


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
        shown = [Exhibit(model, images, mean=mean, std=std, layers=chosen, prepare=prepare)]
    else:
        shown = [model] if isinstance(model, Exhibit) else list(model)
        if images is not None:
            raise ArgumentError("images must be None, because exhibits bring theirs")
        if prepare is not None:
            shown = [replace(one, prepare=prepare) for one in shown]
    live = Live(shown, title=title)
    still = _copy(shown, live.title) if copy else None
    return _widget_class()(live, None if still is None else page_html(live.title, scene=still.to_bytes()))


def _copy(shown: Sequence[Exhibit], title: str) -> Scene | None:
    """Makes the scene of the copy, of all images or the first; None if it would be too large."""
    for exhibits in (shown, [replace(one, images=one.images[:1]) for one in shown]):
        try:
            return build_scene(exhibits, title=title, largest=COPY)
        except SceneSizeError:
            continue
    return None
