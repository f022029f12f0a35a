"""Takes pictures of the interactive page.

python scripts/screenshots.py               # the picture of README.md, into docs/viewer
python scripts/screenshots.py --all FOLDER  # every view at three widths, light and dark, to look at after a change
"""

import argparse
import io
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from convattn.cli import main as convattn

ROOT = Path(__file__).parents[1]
HEIGHTS = {360: 740, 800: 900, 1400: 900}
"""Heights of windows, by their widths."""

VIEWS = {"explore": "layer=3&head=1", "controls": "layer=3&head=1&controls=true"}
for step in range(9):
    VIEWS[f"learn-{step + 1}"] = f"view=learn&step={step}"

SHOWN = ("learn-2", 800, "light")
"""View, width and theme of the picture in README.md."""

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
QUALITY = 80
"""Of WebP, in percent: text stays sharp, and the files small."""


def shoot(browser: Any, address: str, view: str, width: int, theme: str) -> bytes:
    """Takes a picture of a view."""
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHTS[width]},
        color_scheme=theme,
        reduced_motion="reduce",
    )
    page.goto(f"{address}#{VIEWS[view]}")
    page.locator(".stage").wait_for()
    page.wait_for_timeout(2000)  # class scores and curves are computed after the first picture
    content = page.screenshot(full_page=True)
    page.close()
    return content


def save(content: bytes, path: Path) -> None:
    """Writes a picture as a small file."""
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("RGB").save(path, quality=QUALITY, method=6)
    sys.stdout.write(f"{path}\n")


def main() -> None:
    """Makes a page and takes its pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="take every view into a folder")
    folder = parser.parse_args().all
    if folder is None:
        folder, pictures = ROOT / "docs/viewer", [SHOWN]
    else:
        pictures = list(product(VIEWS, HEIGHTS, ("light", "dark")))
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    path = subprocess.check_output([ROOT / "scripts/browser"], text=True, env=environment).strip()
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        file = Path(place, "page.html")
        options = ["--compare", "untrained", "-o", str(file), "--json"]
        assert not convattn(["view", "convattn:cifar10-small", *options])
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for view, width, theme in pictures:
            content = shoot(browser, file.as_uri(), view, width, theme)
            save(content, folder / f"{view}-{width}-{theme}.webp")


if __name__ == "__main__":
    main()
