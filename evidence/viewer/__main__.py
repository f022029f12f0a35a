"""How quick the interactive page is: clicks and drags in a real browser, from the event to the painted frame.

Writes viewer.json and the page viewer.md:

    python -m evidence.viewer
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import timm
import torch

from benchmarks.setting import seeded
from convattn import AttentionNet, load_network
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, load_samples, normalise
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision
from convattn.viewer import Exhibit, build_scene, write_page
from convattn.viewer.page import joined_module

CLICKS, MOVES = 40, 60
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
UNPACED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
"""Frames need not wait for a screen of 60 Hz; after a quick frame the browser waits all the same."""

Frame: TypeAlias = dict[str, float]
"""Milliseconds of a frame: "total" from the event on, "work" from the moment at which the page hears of it."""

LISTEN = """(kind) => {
  window.frames_ = [];
  addEventListener(kind, (event) => {
    const began = performance.now(), channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const ended = performance.now();
      window.frames_.push({ total: ended - event.timeStamp, work: ended - began });
    };
    requestAnimationFrame(() => channel.port2.postMessage(0));
  }, { capture: true });
}"""
"""Notes two times of every event, until the first task after the next frame was painted: from the event, and from the
moment at which the page hears of it. Between the two the browser waits for its next frame."""

PAINTED = """(number) => new Promise((done) => {
  const look = () => (window.frames_.length > number ? done() : setTimeout(look));
  look();
})"""
"""Waits for the frame, so that events do not queue."""

EMPTY = "<!doctype html><title>empty</title><button style='position: absolute; left: 300px; top: 300px'>move</button>"
"""A page that does nothing: what the browser itself takes."""

PAGE = """\
# The speed of the interactive page

Time from a press of the mouse, or a move with the button held, to the painted frame, in {browser} on a page from the
disk: median, and in brackets the time that 95 % of the frames do not exceed.

| what | from event to frame | of which the page works | limit of the median of the first |
|---|---|---|---|
{rows}

The page works to compute, to lay out and to paint. The rest is the browser's waiting for its next frame, which an empty
page has as well.

The joined module has {module:,} bytes (limit 150,000); the page of `convattn:cifar10-small` with twenty images has
{page:.2f} MB (limit 5).

## How it was measured

    {command}

{clicks} clicks at places over the image and {moves} moves of a head, as a user's mouse makes them; nine moves of ten or
more must change the head. {hardware[processor]}, {hardware[cores]} cores, revision {revision}. Load of the machine
in the minute before: {load:.1f} (1 is one busy core){told}. All numbers are in
[viewer.json](../../evidence/viewer/viewer.json).
"""


def scenes() -> dict[str, Any]:
    """Makes what is shown: 6 × 9 heads at 16 × 16, 12 × 12 heads at 14 × 14, and the trained network of the package."""
    images = normalise(load_samples().split.images, CIFAR10_MEAN, CIFAR10_STD)
    with seeded(0):
        own = AttentionNet(width=54, ffn=54).eval()
        vit = timm.create_model("vit_base_patch16_224", embed_dim=192).eval()
        noise = torch.randn(1, 3, 224, 224)
    trained = load_network("convattn:cifar10-small")
    return {
        "6 × 9 maps at 16 × 16": build_scene(
            Exhibit(own, images[:4], mean=CIFAR10_MEAN, std=CIFAR10_STD)
        ),
        "12 × 12 maps at 14 × 14": build_scene(Exhibit(vit, noise)),
        "cifar10-small": build_scene(Exhibit(trained, images, mean=CIFAR10_MEAN, std=CIFAR10_STD)),
    }


def clicks(page: Any) -> list[Frame]:
    """Presses on the image here and there."""
    page.get_by_test_id("query").wait_for()
    page.evaluate(LISTEN, "pointerdown")
    box = page.get_by_test_id("picture").bounding_box()
    for number in range(CLICKS):
        across, down = (0.1 + 0.8 * (number * step % 1) for step in (0.618, 0.755))
        page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.evaluate(PAINTED, number)
    return page.evaluate("window.frames_")


def drag(page: Any, handle: Any, step: float) -> list[Frame]:
    """Takes hold of a handle and moves it around, by a step at a time; the moves must change what it says of itself."""
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(LISTEN, "pointermove")
    said = [handle.get_attribute("aria-label")]
    for number in range(MOVES):
        page.mouse.move(x + step * (number % 3 - 1), y + step * (number // 3 % 3 - 1))
        page.evaluate(PAINTED, number)
        said.append(handle.get_attribute("aria-label"))
    page.mouse.up()
    still = sum(one == other for one, other in pairwise(said))
    if said[0] is not None and still > MOVES // 10:
        raise SystemExit(f"{still} of {MOVES} moves changed nothing, so their times say nothing")
    return page.evaluate("window.frames_")


def drag_handle(page: Any) -> list[Frame]:
    """Moves the centre of a head in Explore; the class scores follow."""
    return drag(page, page.get_by_test_id("handle"), 7.5)


def drag_ring(page: Any) -> list[Frame]:
    """Moves a head in the tour's first step, by about a pixel of its picture at a time."""
    return drag(page, page.locator('[data-step="1"] [role="button"]').last, 48)


def drag_nothing(page: Any) -> list[Frame]:
    """Moves the mouse over a page that does nothing."""
    return drag(page, page.get_by_role("button"), 20)


def measure(browser: Any, folder: Path) -> tuple[dict[str, Any], float]:
    """Measures everything; returns the times by name, and the size of the trained network's page in MB."""
    pages = {
        name: write_page(scene, folder / f"{n}.html")
        for n, (name, scene) in enumerate(scenes().items())
    }
    first, second, trained = pages
    pages["empty"] = folder / "empty.html"
    pages["empty"].write_text(EMPTY, encoding="utf-8")
    cases = [
        (f"click, {first}", first, "", clicks, 50.0),
        (f"click, {second}", second, "", clicks, 150.0),
        ("drag a head in the tour", trained, "#view=learn&step=0", drag_ring, 16.0),
        ("drag a head of cifar10-small in Explore", trained, "#layer=3&head=1", drag_handle, 16.0),
        ("move the mouse over an empty page", "empty", "", drag_nothing, None),
    ]
    found = {}
    for name, subject, fragment, act, limit in cases:
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
        page.goto(pages[subject].as_uri() + fragment)
        frames = act(page)
        page.close()
        spread = {key: sorted(frame[key] for frame in frames) for key in ("total", "work")}
        found[name] = {
            **{
                key: {"median_ms": statistics.median(times), "p95_ms": _p95(times)}
                for key, times in spread.items()
            },
            "limit_ms": limit,
            "count": len(frames),
        }
    return found, pages[trained].stat().st_size / 1e6


def _p95(times: list[float]) -> float:
    return times[int(0.95 * (len(times) - 1))]


def row(what: str, one: dict[str, Any]) -> str:
    """Returns a row of the table."""
    cells = [
        f"{one[key]['median_ms']:.1f} ms ({one[key]['p95_ms']:.1f})" for key in ("total", "work")
    ]
    limit = f"{one['limit_ms']:.0f} ms" if one["limit_ms"] else ""
    return f"| {' | '.join([what, *cells, limit])} |"


def main() -> None:
    """Measures and writes."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Measure the interactive page in a browser.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--note", default="", help="what else the machine did")
    options = parser.parse_args()
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    path = subprocess.run(
        [Path(__file__).parents[2] / "scripts/browser"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.strip()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *UNPACED])
        found, size = measure(browser, Path(folder))
        name = f"Chromium {browser.version}"
    content = {
        "command": "python -m evidence.viewer",
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(),
        "revision": find_revision(),
        "browser": name,
        "load": load,
        "note": options.note,
        "module_bytes": len(joined_module().encode()),
        "page_megabytes": size,
        "times": found,
    }
    lines = [row(what, one) for what, one in found.items()]
    text = PAGE.format(
        **content,
        rows="\n".join(lines),
        module=content["module_bytes"],
        page=size,
        clicks=CLICKS,
        moves=MOVES,
        told=f"; {options.note}" if options.note else "",
    )
    write_atomically(options.output / "viewer.json", json.dumps(content, indent=2) + "\n")
    write_atomically(options.output / "viewer.md", text)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
