"""The page: one HTML file with the module, the style, the texts of the tour and a scene inside."""

import base64
import html
import os
import re
from importlib import resources
from pathlib import Path

from convattn.files import new_folder, write_atomically
from convattn.viewer.module import joined_module
from convattn.viewer.scene import Scene

PAGE, SCENE = "index.html", "scene.safetensors"
"""Files of a folder with a page."""

_STYLES = (
    "page",
    "explore",
    "all-heads",
    "one-head",
    "table-and-training",
    "screens",
    "learn",
    "learn-marks",
    "learn-charts",
    "learn-screens",
)
"""Files of static/css, in the order in which their rules apply."""

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(scene: Scene, folder: str | os.PathLike[str]) -> Path:
    """Writes the interactive page of a scene, which opens from the disk and asks nothing of any server.

    The folder holds `index.html`, with everything inside, and the scene by itself, for other programs.

    Args:
        scene: The scene.
        folder: Folder to make; it must be new or empty. It is there whole or not at all.

    Returns:
        The page.

    Raises:
        ArgumentError: The folder holds something, or is a file.
        WriteError: It cannot be written.
    """
    with new_folder(folder) as temporary:
        write_into(scene, temporary)
    return Path(folder) / PAGE


def write_into(scene: Scene, folder: Path) -> None:
    """Writes the page and the scene into a folder that exists."""
    content = scene.to_bytes()
    write_atomically(folder / SCENE, content)
    write_atomically(folder / PAGE, page_html(scene.header["title"], scene=content))


def page_html(title: str, *, scene: bytes | None = None, entry: str = "start.js", start: str = "openPage();") -> str:
    """Returns the page.

    Args:
        title: Its title.
        scene: The content of a scene's file, to be inside; None leaves it out.
        entry: The file of `static/js` whose functions `start` calls.
        start: JavaScript that runs when the page is there.

    Returns:
        The HTML.
    """
    module, costs = joined_module((entry,)), _static("costs.json")
    assert "</script" not in (module + costs).lower()
    data = "" if scene is None else f'<script type="text/plain" id="convattn-scene">{_base64(scene)}</script>\n'
    parts = {
        "title": html.escape(title.encode(errors="replace").decode()),  # of a folder whose name is no text
        "style": "\n".join(_static(f"css/{name}.css") for name in _STYLES),
        "tour": f'{_static("tour.html")}<script type="application/json" id="convattn-costs">{costs}</script>',
        "scripts": f'{data}<script type="module">\n{module}\n{start}\n</script>',
    }
    template = _static("page.html")
    assert {*_PLACE.findall(template)} == {*parts}, "page.html has other places than it should"
    return _PLACE.sub(lambda found: parts[found[1]], template)


def _static(name: str) -> str:
    return (resources.files("convattn.viewer") / "static" / name).read_text(encoding="utf-8")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
