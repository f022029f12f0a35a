"""Text on a page: the three networks of PP-OCR, which RapidOCR ships as ONNX."""

from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from evidence.real_weights.faces import PHOTOGRAPHS
from evidence.real_weights.onnx_networks import ONNX2TORCH, read_network
from evidence.real_weights.task import Found, Network, Package, Subject, Task
from evidence.runtimes import onnx_runtime

RAPIDOCR = Package("rapidocr-onnxruntime", "rapidocr_onnxruntime", "Apache-2.0")

_FILES = {
    "detection": "ch_PP-OCRv4_det_infer.onnx",
    "orientation": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "recognition": "ch_PP-OCRv4_rec_infer.onnx",
}
_SIZE = (384, 768)
"""Rows and columns of the page: twice those of the photograph, in whole multiples of 32."""

_THRESHOLD, _UNCLIP, _SMALLEST = 0.3, 1.6, 5
"""Settings of RapidOCR: a pixel is text, a box grows by this share of area ÷ perimeter, smaller boxes are dropped."""

_LINE, _TURNED = (48, 320), (48, 192)
"""Rows and columns of the images that recognition (at least) and orientation take."""


def boxes_of(mask: Tensor) -> list[tuple[int, int, int, int]]:
    """Boxes the connected parts of a mask, grown as RapidOCR does, from top to bottom: top, bottom, left, right."""
    measurements = import_module("scipy.ndimage")
    labelled, _ = measurements.label(mask.numpy())
    boxes = []
    for rows, columns in measurements.find_objects(labelled):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if min(height, width) < _SMALLEST:
            continue
        grown = round(height * width * _UNCLIP / (2 * (height + width)))
        top, left = max(0, rows.start - grown), max(0, columns.start - grown)
        boxes.append(
            (
                top,
                min(mask.shape[0], rows.stop + grown),
                left,
                min(mask.shape[1], columns.stop + grown),
            )
        )
    return sorted(boxes)


def cut(
    page: Tensor, boxes: list[tuple[int, int, int, int]], size: tuple[int, int], *, squeeze: bool
) -> Tensor:
    """Cuts boxes out of a page (1, channels, …) and brings them to a size; narrow ones are padded with zeros.

    Boxes that come out wider are squeezed, or else all are padded to the widest one.
    """
    rows, least = size
    shapes = [(bottom - top, right - left) for top, bottom, left, right in boxes]
    widths = [max(1, round(rows * width / height)) for height, width in shapes]
    widths = [min(least, width) for width in widths] if squeeze else widths
    widest = max(least, *widths)
    cuts = []
    for (top, bottom, left, right), width in zip(boxes, widths, strict=True):
        scaled = interpolate(
            page[:, :, top:bottom, left:right], (rows, width), mode="bilinear", antialias=True
        )
        cuts.append(pad(scaled, (0, widest - width)))
    return torch.cat(cuts)


def read_line(best: list[int], characters: list[str]) -> str:
    """Reads a line from the likeliest character of every column; repeated ones and blanks (0) are dropped."""
    return "".join(characters[new] for old, new in pairwise([0, *best]) if new not in (0, old))


def _characters() -> list[str]:
    """Lists the characters that recognition knows, in the order of its scores."""
    model = import_module("onnx").load(RAPIDOCR.folder() / "models" / _FILES["recognition"])
    known = next(item.value for item in model.metadata_props if item.key == "character")
    return ["", *known.splitlines(), " "]


def _build() -> Task:
    from PIL import Image

    pixels = np.asarray(Image.open(PHOTOGRAPHS.folder() / "data" / "page.png").convert("RGB"))
    page = interpolate(torch.tensor(pixels).float().movedim(2, 0)[None], _SIZE, mode="bilinear")
    characters, folder = _characters(), RAPIDOCR.folder() / "models"

    def find(networks: Mapping[str, Network], given: Tensor) -> Found:
        text = networks["detection"](given)
        mask = text[0, 0] > _THRESHOLD
        boxes = boxes_of(mask)
        turned = networks["orientation"](cut(given, boxes, _TURNED, squeeze=True))
        scores = networks["recognition"](cut(given, boxes, _LINE, squeeze=False))
        lines = [read_line(best, characters) for best in scores.argmax(-1).tolist()]
        numbers = {"text or not": text, "orientation": turned, "characters": scores}
        decisions = {
            f"pixels that are text, above {_THRESHOLD}": mask.flatten().tolist(),
            "boxes of lines": boxes,
            "lines upright or upside down": turned.argmax(-1).tolist(),
            "lines read": lines,
        }
        return Found(numbers, decisions, "; ".join(f"“{line}”" for line in lines))

    networks = {name: read_network(folder / file) for name, file in _FILES.items()}
    own = {name: onnx_runtime(folder / file) for name, file in _FILES.items()}
    return Task(networks, page / 127.5 - 1, find, own)


_ABOUT = """\
PP-OCR reads with three networks: one finds pixels of text, one tells whether a line is upside down, one reads it.
RapidOCR ships them as ONNX; they are read by onnx2torch and held against onnxruntime, which the package uses. Boxes
around lines are upright here, where the package turns them. The page is a photograph of print that scikit-image
ships, at twice its size."""

TEXT = Subject(
    "text",
    "Text on a page",
    _ABOUT,
    (RAPIDOCR, ONNX2TORCH, PHOTOGRAPHS),
    _build,
)
