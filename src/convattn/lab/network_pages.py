"""Interactive pages of the networks that tables and figures show, and an index with links."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from convattn.errors import ConvAttnError, UnsupportedModelError
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.lab.html_pages import write_html
from convattn.lab.paper_figures import shown_layer, shown_moments
from convattn.lab.reproduction import TARGETS, Reproduction, TargetResult
from convattn.provenance import RunRecord
from convattn.viewer import build_scene, write_page
from convattn.viewer.exhibition import gather

_HEADS = {"fig4", "fig12", "fig13", "fig14"}
_QUERIES = {f"fig{number}": [(0.5, 0.5)] for number in (5, 6, 8, 9, 10)} | {
    "fig7": [(0.25, 0.25), (0.75, 0.75)]
}
_AVERAGED = {"fig6", "fig7"}


class Link(NamedTuple):
    """A view of a page."""

    text: str  # What it shows
    hash: str  # What follows "#" in its address, as static/js/state.js reads it


def figure_links(
    target: str, snapshots: Sequence[HeadSnapshot], layers: Sequence[int], size: int
) -> list[Link]:
    """Returns the views of a page that a figure shows; none for a table or for curves.

    `snapshots` are the heads of the run, `layers` how many heads each layer of the page has, and `size` is the side of
    the images in pixels.
    """
    if target == "fig3" and snapshots:
        layer = shown_layer(1 + max(shot.layer for shot in snapshots))
        shown = [shot for shot in snapshots if shot.layer == layer]
        moments = [(shown[moment].epoch, moment) for moment in shown_moments(shown)]
        links = [
            Link(f"epoch {epoch}", f"layer={layer}&epoch={moment}") for epoch, moment in moments
        ]
        return [Link(f"layer {layer + 1} over the training", f"layer={layer}&epoch=0"), *links]
    if target in _HEADS:
        return [Link(f"layer {layer + 1}", f"layer={layer}") for layer in range(len(layers))]
    links, queries = [], _QUERIES.get(target, [])
    for row, col in queries:
        pixel = (int(row * size), int(col * size))
        where = f"query={pixel[0]},{pixel[1]}" + "&average=true" * (target in _AVERAGED)
        at = f", query at row {pixel[0] + 1}, column {pixel[1] + 1}" if len(queries) > 1 else ""
        links += [
            Link(f"layer {layer + 1}{at}", f"layer={layer}&{where}") for layer in range(len(layers))
        ]
    return links


VIEW = "view"
"""Folder of the pages."""

LARGEST = 128 * 2**20
"""Bytes of all pages of a folder; a page that does not fit is left out, and the index says what makes it."""

_ALL_RUNS = ("table1", "fig2")


@dataclass
class _Page:
    """The page of one run, or why it has none."""

    run: Path
    recipe: str
    title: str
    address: str = ""  # As seen from the index
    megabytes: float = 0.0
    problem: str = ""
    links: dict[str, list[Link]] = field(default_factory=dict)  # By target


def write_views(result: Reproduction, folder: Path) -> Path | None:
    """Writes the page of each network that tables and figures show into their folder, and an index of all.

    A page is that of `convattn view RUN`. A table, and the curves, show the network of the lowest seed of each recipe.
    A network without attention has no page. Returns the index; None if no table or figure was made.
    """
    made = [target for target in result.targets if target.files]
    if not made:
        return None
    pages, left = {}, LARGEST
    for run in _chosen_runs(made):
        if (page := _write_page(Path(run), folder, left)) is not None:
            left -= int(page.megabytes * 1e6)
            pages[run] = page
    shown = [(target, [pages[run] for run in target.runs if run in pages]) for target in made]
    return write_html(
        "reproduce_page.html", folder, result=result, shown=shown, pages=list(pages.values())
    )


def _chosen_runs(made: Sequence[TargetResult]) -> list[str]:
    """Returns the runs that have pages, those of figures of one network first; of each recipe the first."""
    alone = [target.runs[0] for target in made if target.target not in _ALL_RUNS]
    others = [run for target in made if target.target in _ALL_RUNS for run in target.runs]
    recipes: dict[str, str] = {}
    for run in [*alone, *others]:
        recipes.setdefault(RunRecord.load(Path(run) / "record.json").name, run)
    return list(recipes.values())


def _write_page(run: Path, folder: Path, left: int) -> _Page | None:
    """Writes the page of a run; None if its network has no attention."""
    record = RunRecord.load(run / "record.json")
    scale = record.recipe.get("scale", "paper")
    page = _Page(run, record.name, f"{record.name}, scale {scale}, seed {record.seed}")
    try:
        shown = gather(str(run))
        exhibit = replace(shown.exhibits[0], name=record.name, title=page.title)
        scene = build_scene(exhibit, names=shown.names, labels=shown.labels, largest=left * 3 // 4)
        written = write_page(scene, folder / VIEW / record.name)
    except UnsupportedModelError:
        return None
    except ConvAttnError as error:
        page.problem = str(error)
        return page
    page.address = written.relative_to(folder).as_posix()
    page.megabytes = written.stat().st_size / 1e6
    layers = [layer["heads"] for layer in scene.header["networks"][0]["layers"]]
    page.links = {
        target: figure_links(target, exhibit.heads, layers, exhibit.size[0]) for target in TARGETS
    }
    return page
