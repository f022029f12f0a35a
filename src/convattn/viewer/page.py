"""The page: one HTML file with the module, the style, the texts of the tour and a scene inside."""

import base64
import html
import os
import re
from importlib import resources
from pathlib import Path, PurePosixPath

from convattn.files import new_folder, write_atomically
from convattn.viewer.scene import Scene

PAGE, SCENE = "index.html", "scene.safetensors"
"""Files of a folder with a page."""

STYLES = ("page", "explore", "learn")
"""Files of static/css, in the order in which their rules apply."""


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
    content = scene.to_bytes()
    with new_folder(folder) as temporary:
        write_atomically(temporary / SCENE, content)
        write_atomically(temporary / PAGE, page_html(scene.header["title"], scene=content))
    return Path(folder) / PAGE


def page_html(title: str, scene: bytes | None = None) -> str:
    """Returns the HTML of the page, with the content of a scene's file inside; with None it fetches "scene"."""
    data = "" if scene is None else base64.b64encode(scene).decode()
    costs = f'<script type="application/json" id="convattn-costs">{_static("costs.json")}</script>'
    parts = {
        "title": html.escape(
            title.encode(errors="replace").decode()
        ),  # of a folder whose name is no text
        "style": "\n".join(_static(f"css/{name}.css") for name in STYLES),
        "tour": _static("tour.html") + costs,
        "scene": f'<script type="text/plain" id="convattn-scene">{data}</script>' if data else "",
        "script": f"{joined_module()}\nopenPage();",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _static("page.html"))


_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.{1,2}/[\w./-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async function|function|const|let|class)\b)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:[^*]|\*(?!/))*\*/[ \t]*|//[^\n]*)\n", re.MULTILINE)
_CAST = re.compile(r"/\*\* @type (?:[^*]|\*(?!/))*\*/ ?")
_LAST_COMMENT = re.compile(
    r"""[ \t]+// [^\n"'`]*$""", re.MULTILINE
)  # no text ends after it, so none begins before it
_INDENTATION = re.compile(r"^\s+", re.MULTILINE)


def joined_module(entry: str = "page.js") -> str:
    """Joins a file of `static/js` and all that it imports to one module, without comments and indentation.

    Each file comes after those that it imports. What the files must keep to, such as unique names and texts of one
    line, is tested.
    """
    files: dict[str, str] = {}
    _gather(entry, files, ())
    return "".join(map(_stripped, files.values()))


def _gather(name: str, files: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds a file after those that it imports; `above` are the files that import it."""
    if name in files or name in above:  # functions may use each other in a circle
        return
    text = _static(f"js/{name}")
    for path in _IMPORT.findall(text):
        _gather(os.path.normpath(PurePosixPath(name).parent / path), files, (*above, name))
    files[name] = text


def _stripped(text: str) -> str:
    for pattern in (_IMPORT, _EXPORT, _COMMENT, _CAST, _LAST_COMMENT, _INDENTATION):
        text = pattern.sub("", text)
    return text.strip() + "\n"


def _static(name: str) -> str:
    return (resources.files("convattn.viewer") / "static" / name).read_text(encoding="utf-8")
