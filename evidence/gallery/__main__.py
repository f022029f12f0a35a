"""The gallery: a page with the heads of each trained network, and the interactive page of those that see pictures.

    python -m evidence.gallery --work WORK

WORK is that of evidence.trained_heads, with the reports that it measured. Reports go into docs/gallery, and scenes with
two photographs of scikit-learn and as many layers of the cross as fit, of which the site makes pages.
"""

import base64
import io
import tempfile
from collections import Counter
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convattn.errors import ArgumentError, optional_module
from convattn.files import write_atomically
from convattn.heads.head_report import HeadReport
from convattn.lab.figures import figure_files
from convattn.lab.html_pages import write_report
from convattn.viewer import Exhibit, SceneSizeError, build_scene
from convattn.viewer.exhibition import Exhibition
from evidence.photographs import prepared
from evidence.results import ROOT, environment, new_parser, publish
from evidence.trained_heads.page import Record, cross, run
from evidence.trained_heads.picture import NETWORKS, SIZE, draw_cross, look, nearest_patch
from evidence.trained_heads.reports import kept_report

GALLERY = ROOT / "docs" / "gallery"
PHOTOGRAPHS = {
    "flower.jpg": "flickr.com/photos/vultilion/6056698931",
    "china.jpg": "flickr.com/photos/danielbuechele/6061409035",
}
"""Photographs of scikit-learn under CC BY 2.0, and where they are from."""

LARGEST = 1_900_000
"""Bytes that the maps and pictures of a page may have, so that the repository stays small."""

NO_WEIGHTS = "This page holds measurements, and no weights of the network."
ROUNDED = "Maps are stored in 8 bits: a weight is off by at most 1/510 of the range of its query's weights."


def source_of(record: Record) -> str:
    """Says from where the weights are, without marks."""
    return f"Weights: {record['about']}.".replace("`", "")


def credit() -> str:
    """Names the photographs and their licence."""
    words = [f"{name} of scikit-learn ({home})" for name, home in PHOTOGRAPHS.items()]
    return f"Scaled and cut: {' and '.join(words)}, CC BY 2.0."


def exhibition(record: Record, network: nn.Module, colours: Any) -> Exhibition:
    """Shows a network on photographs, with the layers that hold most of the cross, as many as fit."""
    datasets = optional_module("sklearn.datasets", "train").datasets
    image = optional_module("PIL.Image", "pictures").Image
    photographs = [image.fromarray(datasets.load_sample_image(name)) for name in PHOTOGRAPHS]
    exhibit = Exhibit(
        network,
        torch.stack([prepared(photograph, SIZE, colours)[0] for photograph in photographs]),
        name="trained",
        title=record["title"],
        note=" ".join([source_of(record), NO_WEIGHTS, ROUNDED, credit()]),
        mean=colours[0],
        std=colours[1],
    )
    numbers_by_name = {head["name"]: head["layer"] for head in record["heads"]}
    layers = [name for name, _ in Counter(head["name"] for head in cross(record)).most_common()]
    for count in range(len(layers), 0, -1):
        numbers = sorted(numbers_by_name[layer] for layer in layers[:count])
        title = f"{record['title']}, layer {' and '.join(map(str, numbers))}"
        shown = replace(exhibit, layers=tuple(layers[:count]), title=title)
        try:
            build_scene(shown, largest=LARGEST)
        except SceneSizeError:
            continue
        return Exhibition((shown,), tuple(PHOTOGRAPHS), ())
    raise ArgumentError(f"no layer of {record['title']} fits into {LARGEST} bytes")


def numbers_of(report: HeadReport, shown: Exhibition) -> list[int]:
    """Numbers the layers that the interactive page shows, as the report does."""
    layers = [layer.name for layer in report.layers]
    return sorted(layers.index(name) + 1 for name in shown.exhibits[0].layers or ())


def write_pages(
    record: Record, report: HeadReport, folder: Path, shown: Exhibition | None
) -> dict[str, int]:
    """Writes the pages of a network into a folder; returns their sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        written = Path(temporary)
        # a slash would begin the name of a file
        title = record["title"].replace("/", "-")
        write_report(report, written, source=title, images="not shown here", shown=shown)
        page = (written / "index.html").read_text(encoding="utf-8")
        figure = written / "distance.png"
        page = page.replace(*map(_as_text, (figure.read_bytes(), _in_few_colours(figure, 32))))
        about = [source_of(record), NO_WEIGHTS, "Files that it names are not in the gallery."]
        if shown is not None:
            layers = " and ".join(map(str, numbers_of(report, shown)))
            about.append(f"Maps of layer {layers} lead to the interactive page.")
            about += [ROUNDED, credit()]
        notice = f'<p class="small">{escape(" ".join(about))}</p>\n'
        pages: dict[str, str | bytes] = {"index.html": page.replace("<h2>", f"{notice}<h2>", 1)}
        if shown is not None:
            pages["view.safetensors"] = shown.scene(report).to_bytes()
    for file, content in pages.items():
        write_atomically(folder / file, content)
    return {file: (folder / file).stat().st_size for file in pages}


def _in_few_colours(file: Path, colours: int) -> bytes:
    """Returns the PNG file of a picture in few colours, which is smaller."""
    picture = optional_module("PIL.Image", "pictures").Image.open(file)
    content = io.BytesIO()
    picture.convert("RGB").quantize(colours).save(content, "png", optimize=True)
    return content.getvalue()


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _not_measured(_: nn.Module) -> HeadReport:
    raise ArgumentError("--work must hold NETWORK.report.json: run evidence.trained_heads first")


def draw(record: Record, shown: Exhibition, file: Path) -> list[int]:
    """Draws the cross of a network on its first photograph; returns row and column of the pixel that looks."""
    heads, exhibit = cross(record), shown.exhibits[0]
    looks = look(exhibit.network, exhibit.images[0], heads)
    image = optional_module("PIL.Image", "pictures").Image
    with figure_files([file], (2.1, 2.95)) as figure:
        picture = image.fromarray(exhibit.pictures()[0].numpy())
        draw_cross(figure.subplots(), picture, heads, looks)
    write_atomically(file, _in_few_colours(file, 200))
    pixels = SIZE // looks[0].layout.grid[0]
    return [place * pixels + pixels // 2 for place in nearest_patch(looks)]


def main() -> None:
    """Writes the pages."""
    work = new_parser(__doc__, "--work").parse_args().work
    pages = {}
    for name, record in run().items():
        folder = GALLERY / name
        file, shown = work / f"{name}.report.json", None
        if name in NETWORKS:
            load, colours = NETWORKS[name]
            network = load(work)
            report = kept_report(file, network, _not_measured)
            shown = exhibition(record, network, colours)
        elif file.is_file():
            report = HeadReport.load(file)
        else:
            continue
        pages[name] = {"bytes": write_pages(record, report, folder, shown), "layers": []}
        if shown is not None:
            pages[name]["query"] = draw(record, shown, folder / "cross.png")
            pages[name]["layers"] = numbers_of(report, shown)
        print(name, pages[name], flush=True)
    publish(__file__, {**environment(__file__, "transformers"), "pages": pages})


if __name__ == "__main__":
    main()
