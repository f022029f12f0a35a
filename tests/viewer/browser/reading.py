"""What a reader of the page does and sees, in one line each; and what the library says to it."""

import csv
import math
import time
from pathlib import Path

import torch

from convattn.budget import budget, references
from convattn.heads.reading import watch

PATIENCE = 120
"""Seconds after which a page counts as hanging; a busy machine is slow."""


def download(page, button):
    """Presses a button that gives a file, among all controls, and returns its content."""
    closed = page.locator('.all-controls[aria-expanded="false"]')
    if closed.count():
        closed.click()
    with page.expect_download() as given:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(given.value.path()).read_bytes()


def query_of(page):
    """Returns row and column of the query, in pixels of the image."""
    told = page.get_by_test_id("query")
    return int(told.get_attribute("data-row")), int(told.get_attribute("data-col"))


def choose(page, layer, head):
    """Chooses a head by its small map."""
    page.locator(f'button.map[data-layer="{layer}"][data-head="{head}"]').click()


def map_of(page):
    """Returns the weights of the chosen head, as the page saves them: (key rows, key cols)."""
    saved = csv.DictReader(download(page, "Save map as CSV").decode().splitlines())
    lines = [line for line in saved if not line["token"]]
    rows, cols = (1 + max(int(line[f"key_{axis}"]) for line in lines) for axis in ("row", "col"))
    values = [float(line["weight"]) if line["weight"] else math.nan for line in lines]
    return torch.tensor(values, dtype=torch.float64).view(rows, cols)


def cell(layer, query):
    """Returns the cell of a layer that is nearest to a pixel."""
    place, found = layer["place"], []
    for at, first, step, cells in zip(
        query, place["first"], place["step"], layer["grid"], strict=True
    ):
        found.append(min(max(math.floor((at - first) / step + 0.5), 0), cells - 1))
    return tuple(found)


def own_weights(shown, layer, head, query):
    """Returns the weights of a layer of the first network at a pixel, and how far float32 may be from them."""
    described = shown.scene.header["networks"][0]["layers"][layer]
    row, col = cell(described, query)
    module = shown.exhibits[0].network.get_submodule(described["name"])
    with torch.no_grad():
        hi, lows = references(
            lambda layer: layer.attention(tuple(described["keys"]["grid"]))[head, row, col], module
        )
    return hi, budget(hi, lows)


def read_weights(shown, image, layer, head, query):
    """Returns the weights of the second network at a pixel, and how far bytes may be from them: half a level."""
    exhibit, found = shown.exhibits[1], []
    watch(
        exhibit.network,
        exhibit.images[image : image + 1],
        lambda call: found.append(call.weights[0, 0].double()),
    )
    row, col = cell(shown.scene.header["networks"][1]["layers"][layer], query)
    line = found[layer][head, 1 + 8 * row + col]
    return line[1:].view(8, 8), float(line.max()) / 510 + torch.finfo(torch.float32).eps


def expect_map(page, expected, allowed):
    """Waits until the page's numbers are those; fails with how far they are off."""
    end = time.monotonic() + PATIENCE
    while True:
        found = map_of(page)
        error = float((found - expected).abs().max()) if found.shape == expected.shape else math.inf
        if error <= allowed:
            return
        assert time.monotonic() < end, (
            f"off by {error:.3g}, allowed {allowed:.3g}; {found.shape} {expected.shape}"
        )
        page.wait_for_timeout(50)
