"""Interactive pages of the networks that tables and figures show, and an index with links."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from convattn.errors import ConvAttnError, UnsupportedModelError
from convattn.heads.head_snapshots import HEADS, HeadSnapshot, read_heads
from convattn.lab.html_pages import write_html
from convattn.lab.paper_figures import choose_images, shown_layer, shown_moments
from convattn.lab.recipe import load_recipe
from convattn.lab.reproduction import TARGETS, Reproduction, TargetResult
from convattn.lab.run_setup import load_data
from convattn.networks import load_network
from convattn.networks.datasets import CIFAR10_MEAN, CIFAR10_STD, ImageDataset, load_samples, normalise
from convattn.provenance import RunRecord
from convattn.viewer import Exhibit, Scene, build_scene, write_page

_HEADS = {"fig4", "fig12", "fig13", "fig14"}
_QUERIES = {"fig5": [(0.5, 0.5)], "fig6": [(0.5, 0.5)], "fig7": [(0.25, 0.25), (0.75, 0.75)]}
_IMAGES_OF_LINKS = {"fig8": 0, "fig9": 1, "fig10": 2}


class Link(NamedTuple):
    """A view of a page."""

    text: str  # What it shows
    hash: str  # What follows "#" in its address, as static/js/state.js reads it


def figure_links(target: str, snapshots: Sequence[HeadSnapshot], layers: Sequence[int], size: int) -> list[Link]:
    """Returns the views of a page that a figure shows; none for a table or for curves.

    `snapshots` are the heads of the run, `layers` how many heads each layer of the page has, and `size` is the side of
    the images in pixels.
    """
    if target == "fig3" and snapshots:
        layer = shown_layer(1 + max(shot.layer for shot in snapshots))
        shown = [shot for shot in snapshots if shot.layer == layer]
        moments = [(shown[moment].epoch, moment) for moment in shown_moments(shown)]
        links = [Link(f"epoch {epoch}", f"layer={layer}&epoch={moment}") for epoch, moment in moments]
        return [Link(f"layer {layer + 1} over the training", f"layer={layer}&epoch=0"), *links]
    if target in _HEADS:
        return [Link(f"layer {layer + 1}", f"layer={layer}") for layer in range(len(layers))]
    links = []
    for row, col in _QUERIES.get(target, [(0.5, 0.5)] if target in _IMAGES_OF_LINKS else []):
        pixel = (int(row * size), int(col * size))
        where = f"query={pixel[0]},{pixel[1]}"
        if target in ("fig6", "fig7"):
            where += "&average=true"
        if target in _IMAGES_OF_LINKS:
            where += f"&image={_IMAGES_OF_LINKS[target]}"
        at = f", query at row {pixel[0] + 1}, column {pixel[1] + 1}" if len(_QUERIES.get(target, [0])) > 1 else ""
        links += [Link(f"layer {layer + 1}{at}", f"layer={layer}&{where}") for layer in range(len(layers))]
    return links


VIEW = "view"
"""Folder of the pages."""

LARGEST = 128 * 2**20
"""Bytes of all pages of a folder; a page that does not fit is left out, and the index says what makes it."""

_ALL_RUNS = ("table1", "fig2")
_SHOW_IMAGES = tuple(f"fig{number}" for number in range(6, 11))
_IMAGES = 3


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


def write_views(result: Reproduction, folder: Path, data: Path | None) -> Path | None:
    """Writes the page of each network that tables and figures show into their folder, and an index of all.

    A table, and the curves, show the network of the lowest seed of each recipe. A network without attention has no
    page. `data` is a folder with the files of CIFAR-10, in place of those that the runs name. Returns the index; None
    if no table or figure was made.
    """
    made = [target for target in result.targets if target.files]
    if not made:
        return None
    pages, left = {}, LARGEST
    for run in _chosen_runs(made):
        images = any(run == target.runs[0] and target.target in _SHOW_IMAGES for target in made)
        page = _write_page(Path(run), folder, data, left, images=images)
        if page is None:
            continue
        left -= int(page.megabytes * 1e6)
        pages[run] = page
    shown = [(target, [pages[run] for run in target.runs if run in pages]) for target in made]
    return write_html("reproduce_page.html", folder, result=result, shown=shown, pages=list(pages.values()))


def _chosen_runs(made: Sequence[TargetResult]) -> list[str]:
    """Returns the runs that have pages, those of figures of one network first; of each recipe the first."""
    alone = [target.runs[0] for target in made if target.target not in _ALL_RUNS]
    others = [run for target in made if target.target in _ALL_RUNS for run in target.runs]
    recipes: dict[str, str] = {}
    for run in [*alone, *others]:
        recipes.setdefault(RunRecord.load(Path(run) / "record.json").name, run)
    return list(recipes.values())


def _write_page(run: Path, folder: Path, data: Path | None, left: int, *, images: bool) -> _Page | None:
    """Writes the page of a run; None if its network has no attention."""
    record = RunRecord.load(run / "record.json")
    scale = record.recipe.get("scale", "paper")
    page = _Page(run, record.name, f"{record.name}, scale {scale}, seed {record.seed}")
    try:
        exhibit, names, labels = _exhibit(run, record, data, page.title, images=images)
        scene = build_scene(exhibit, names=names, labels=labels, largest=left * 3 // 4)
        written = write_page(scene, folder / VIEW / record.name)
    except UnsupportedModelError:
        return None
    except ConvAttnError as error:
        page.problem = str(error)
        return page
    page.address = written.relative_to(folder).as_posix()
    page.megabytes = written.stat().st_size / 1e6
    page.links = _links(scene, exhibit)
    return page


def _links(scene: Scene, exhibit: Exhibit) -> dict[str, list[Link]]:
    layers = [layer["heads"] for layer in scene.header["networks"][0]["layers"]]
    return {target: figure_links(target, exhibit.heads, layers, exhibit.size[0]) for target in TARGETS}


def _exhibit(
    run: Path, record: RunRecord, data: Path | None, title: str, *, images: bool
) -> tuple[Exhibit, list[str], list[str]]:
    """Loads the network of a run with images: those of figures 6 to 10, or the samples of the package."""
    network = load_network(run)
    heads = read_heads(run) if (run / HEADS).is_file() else []
    samples, cifar10 = load_samples(), record.recipe["data"]["name"] == "cifar10"
    classes = samples.classes if cifar10 else ()
    if images or not cifar10:
        found = _data(run, data)
        chosen = choose_images(found, _IMAGES).tolist()
        prepared = normalise(found.test.images[chosen], found.mean, found.std)
        mean, std = found.mean, found.std
        names = [f"test image {number}" for number in chosen]
        given = [int(found.test.labels[number]) for number in chosen]
    else:
        mean, std = CIFAR10_MEAN, CIFAR10_STD
        prepared = normalise(samples.split.images, mean, std)
        names = [f"test image {row}" for row in samples.rows]
        given = samples.split.labels.tolist()
    labels = [classes[label] if classes else f"class {label}" for label in given]
    exhibit = Exhibit(
        network, prepared, name=record.name, title=title, mean=mean, std=std, classes=classes, heads=heads
    )
    return exhibit, names, labels


def _data(run: Path, folder: Path | None) -> ImageDataset:
    recipe = load_recipe(run / "recipe.toml").data
    return load_data(recipe if folder is None else replace(recipe, folder=str(folder)))
