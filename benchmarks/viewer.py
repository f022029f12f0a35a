"""How quick the interactive page is: clicks and drags in a real browser, from the event to the painted frame.

Writes viewer.json and the page viewer.md:

    python -m benchmarks.viewer --output docs/results
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch

from benchmarks.setting import seeded
from convattn import AttentionNet, load_network
from convattn.data import normalise
from convattn.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
from convattn.data.samples import load_samples
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision
from convattn.viewer import Exhibit, build_scene, write_page
from convattn.viewer.module import joined_module

CLICKS, MOVES = 40, 60
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
UNPACED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
"""Frames are painted as soon as they are ready: a screen of 60 Hz would add up to 16.7 ms of waiting."""

LISTEN = """(kind) => {
  window.times = [];
  addEventListener(kind, (event) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.times.push(performance.now() - event.timeStamp);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  }, { capture: true });
}"""
"""Notes the time from an event to the first task after the next frame was painted."""

PAINTED = """(number) => new Promise((done) => {
  const look = () => (window.times.length > number ? done() : setTimeout(look));
  look();
})"""
"""Waits for the frame, so that events do not queue."""

PAGE = """\
# The speed of the interactive page

Time from a press of the mouse, or a move with the button held, to the painted frame, in {browser} on a page from the
disk. Rows are computed or decoded, and every map is drawn anew.

| what | median | 95 % | limit |
|---|---|---|---|
{rows}

The joined module has {module:,} bytes (limit 150,000); the page of `convattn:cifar10-small` with twenty images has
{page:.2f} MB (limit 5).

## How it was measured

    {command}

{clicks} clicks at places over the image and {moves} moves of a head, as a user's mouse makes them; frames are not held
back to a screen's rate. {hardware[processor]}, {hardware[cores]} cores, revision {revision}. Load of the machine
before: {load:.1f} (1 is one busy core){told}. All numbers are in [viewer.json](viewer.json).
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
        "6 × 9 maps at 16 × 16": build_scene(Exhibit(own, images[:4], mean=CIFAR10_MEAN, std=CIFAR10_STD)),
        "12 × 12 maps at 14 × 14": build_scene(Exhibit(vit, noise)),
        "cifar10-small": build_scene(Exhibit(trained, images, mean=CIFAR10_MEAN, std=CIFAR10_STD)),
    }


def clicks(page: Any) -> list[float]:
    """Presses on the image here and there."""
    page.get_by_test_id("query").wait_for()
    page.evaluate(LISTEN, "pointerdown")
    box = page.get_by_test_id("picture").bounding_box()
    for number in range(CLICKS):
        across, down = (0.1 + 0.8 * (number * step % 1) for step in (0.618, 0.755))
        page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.evaluate(PAINTED, number)
    return page.evaluate("window.times")


def drag(page: Any, x: float, y: float) -> list[float]:
    """Takes hold at a place and moves around it."""
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(LISTEN, "pointermove")
    for number in range(MOVES):
        page.mouse.move(x + 30 * (number % 5) / 4, y + 30 * (number // 5 % 5) / 4)
        page.evaluate(PAINTED, number)
    page.mouse.up()
    return page.evaluate("window.times")


def drag_handle(page: Any) -> list[float]:
    """Moves the centre of a head in Explore; the class scores follow."""
    handle = page.get_by_test_id("handle")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    return drag(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def drag_ring(page: Any) -> list[float]:
    """Moves a head in the tour's first step."""
    ring = page.locator('[data-step="1"] [role="button"]').last
    ring.scroll_into_view_if_needed()
    box = ring.bounding_box()
    return drag(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def measure(browser: Any, folder: Path) -> tuple[dict[str, Any], float]:
    """Measures everything; returns the times by name, and the size of the trained network's page in MB."""
    pages = {name: write_page(scene, folder / f"{n}") for n, (name, scene) in enumerate(scenes().items())}
    first, second, trained = pages
    cases = [
        (f"click, {first}", first, "", clicks, 50.0),
        (f"click, {second}", second, "", clicks, 150.0),
        ("drag a head in the tour", trained, "#view=learn&step=0", drag_ring, 16.0),
        ("drag a head of cifar10-small in Explore", trained, "#layer=3&head=1", drag_handle, 16.0),
    ]
    found = {}
    for name, subject, fragment, act, limit in cases:
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
        page.goto(pages[subject].as_uri() + fragment)
        times = sorted(act(page))
        page.close()
        found[name] = {
            "median_ms": statistics.median(times),
            "p95_ms": times[int(0.95 * (len(times) - 1))],
            "limit_ms": limit,
            "count": len(times),
        }
    return found, pages[trained].stat().st_size / 1e6


def main() -> None:
    """Measures and writes."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Measure the interactive page in a browser.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--note", default="", help="what else the machine did")
    options = parser.parse_args()
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    path = subprocess.run(
        [Path(__file__).parents[1] / "scripts/browser"], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *UNPACED])
        found, size = measure(browser, Path(folder))
        name = f"Chromium {browser.version}"
    content = {
        "command": "python -m benchmarks.viewer --output docs/results",
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
    lines = [
        f"| {what} | {one['median_ms']:.1f} ms | {one['p95_ms']:.1f} ms | {one['limit_ms']:.0f} ms |"
        for what, one in found.items()
    ]
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
