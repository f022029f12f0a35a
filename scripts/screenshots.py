"""Takes the pictures of the interactive page: every view at three widths, light and dark, into docs/viewer.

    python scripts/screenshots.py [--only WORD] [FOLDER]

Look at them after a change of the page.
"""

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from convattn.cli import main as convattn

ROOT = Path(__file__).parents[1]
WIDTHS = {360: 740, 800: 900, 1400: 900}
VIEWS = {
    "explore": "layer=2&head=1",
    **{f"learn-{n}": f"view=learn&step={n - 1}" for n in range(1, 7)},
}
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--hide-scrollbars",
)
QUALITY = 80
"""Of WebP, in percent: text stays sharp, and the files small."""


def shoot(browser: Any, address: str, folder: Path, only: str) -> None:
    """Takes every picture whose name has the word."""
    for view, fragment in VIEWS.items():
        for width, height in WIDTHS.items():
            for theme in ("light", "dark"):
                name = f"{view}-{width}-{theme}.webp"
                if only not in name:
                    continue
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                    reduced_motion="reduce",
                )
                page.goto(f"{address}#{fragment}")
                page.locator(".stage").wait_for()
                page.wait_for_timeout(
                    2000
                )  # what is computed after the first picture: class scores, the curve of step 2
                content = page.screenshot(full_page=True)
                page.close()
                save(content, folder / name)
                sys.stdout.write(f"{name}\n")


def save(content: bytes, path: Path) -> None:
    """Writes a picture as a small file."""
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("RGB").save(path, quality=QUALITY, method=6)


def main() -> None:
    """Makes a page and takes its pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs/viewer")
    parser.add_argument("--only", default="", help="word in the names of the pictures to take")
    options = parser.parse_args()
    environment = {**os.environ, "VENV": str(Path(sys.executable).parents[1])}
    path = subprocess.run(
        [ROOT / "scripts/browser"], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder, "page")
        assert not convattn(
            ["view", "convattn:cifar10-small", "--compare", "untrained", "-o", str(page)]
        )
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        shoot(browser, (page / "index.html").as_uri(), options.folder, options.only)


if __name__ == "__main__":
    main()
