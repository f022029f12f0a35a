"""Which views of the interactive page a figure of the paper shows: the text of each link, and its hash."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from convattn.analysis.heads import HeadSnapshot
from convattn.analysis.reproduction.heads import shown_layer, shown_moments
from convattn.files import write_atomically

__all__ = ["Link", "figure_links", "link_panels"]

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HEADS = {"fig4", "fig12", "fig13", "fig14"}
_QUERIES = {"fig5": [(0.5, 0.5)], "fig6": [(0.5, 0.5)], "fig7": [(0.25, 0.25), (0.75, 0.75)]}
_IMAGES = {"fig8": 0, "fig9": 1, "fig10": 2}


class Link(NamedTuple):
    """A view of a page."""

    text: str  # What it shows
    hash: str  # What follows "#" in its address, as static/js/state.js reads it
    panel: int | None = None  # The panel of the figure that shows it, from 1


def figure_links(target: str, snapshots: Sequence[HeadSnapshot], layers: Sequence[int], size: int) -> list[Link]:
    """Returns the views of a page that a figure shows, in the order of its panels; none for a table or for curves.

    `snapshots` are the heads of the run, `layers` how many heads each layer of the page has, and `size` is the side of
    the images in pixels.
    """
    if target == "fig3" and snapshots:
        layer = shown_layer(1 + max(shot.layer for shot in snapshots))
        shown = [shot for shot in snapshots if shot.layer == layer]
        moments = [
            Link(f"epoch {shown[moment].epoch}", f"layer={layer}&epoch={moment}", 2 + number)
            for number, moment in enumerate(shown_moments(shown))
        ]
        return [Link(f"layer {layer + 1} over the training", f"layer={layer}&epoch=0", 1), *moments]
    if target in _HEADS:
        return [Link(f"layer {layer + 1}", f"layer={layer}", 1 + layer) for layer in range(len(layers))]
    links = []
    for row, col in _QUERIES.get(target, [(0.5, 0.5)] if target in _IMAGES else []):
        pixel = (int(row * size), int(col * size))
        where = f"query={pixel[0]},{pixel[1]}"
        if target in ("fig6", "fig7"):
            where += "&average=true"
        if target in _IMAGES:
            where += f"&image={_IMAGES[target]}"
        at = f", query at row {pixel[0] + 1}, column {pixel[1] + 1}" if len(_QUERIES.get(target, [0])) > 1 else ""
        links += [Link(f"layer {layer + 1}{at}", f"layer={layer}&{where}") for layer in range(len(layers))]
    return links


def link_panels(figure: Path, links: Sequence[Link], page: str) -> None:
    """Makes the panels of an SVG of matplotlib links to the views that they show.

    `page` is the page's address as seen from the figure.
    """
    panels = {f"axes_{link.panel}": link for link in links if link.panel is not None}
    if not panels:
        return
    for prefix, name in (("", _SVG), ("xlink", _XLINK), ("cc", "http://creativecommons.org/ns#")):
        ET.register_namespace(prefix, name)
    text = figure.read_text(encoding="utf-8")
    tree = ET.fromstring(text)
    for parent in list(tree.iter(f"{{{_SVG}}}g")):
        for at, child in enumerate(list(parent)):
            link = panels.get(child.get("id", ""))
            if link is not None:
                parent[at] = _linked(child, f"{page}#{link.hash}", link.text)
    head = re.match(r".*?(?=<svg)", text, re.DOTALL)
    write_atomically(figure, f"{head[0] if head else ''}{ET.tostring(tree, encoding='unicode')}\n")


def _linked(child: Any, address: str, text: str) -> Any:
    link = ET.Element(f"{{{_SVG}}}a", {"href": address, f"{{{_XLINK}}}href": address, "target": "_top"})
    title = ET.SubElement(link, f"{{{_SVG}}}title")
    title.text = f"{text}: open it in the interactive page"
    link.append(child)
    return link
