"""The page: one HTML file with the module, the style, the texts of the tour and a scene inside."""

import base64
import html
import os
import re
from importlib import resources
from pathlib import Path, PurePosixPath

from convattn.files import AnyPath, as_path, write_atomically
from convattn.viewer.scene import Scene

STYLES = ("page", "explore", "learn")
"""Files of static/css, in the order in which their rules apply."""


def write_page(scene: Scene, path: AnyPath) -> Path:
    """Writes the interactive page of a scene: one file, which opens from the disk and asks nothing of any server.

    Args:
        scene: The scene.
        path: File to write, such as page.html; its folder must exist. An older file is replaced. The new one is there
            whole or not at all.

    Returns:
        The path.

    Raises:
        ArgumentError: The folder does not exist, or the path is a folder.
        WriteError: It cannot be written.
    """
    return write_atomically(as_path(path, "path"), page_html(scene))


def page_html(scene: Scene) -> str:
    """Returns the HTML of the page."""
    # a folder's name may be no text
    title = scene.header["title"].encode(errors="replace").decode()
    parts = {
        "title": html.escape(title),
        "style": "\n".join(_static(f"css/{name}.css") for name in STYLES),
        "tour": _static("tour.html"),
        "costs": _static("costs.json"),
        "measured": _static("measured.json"),
        "scene": base64.b64encode(scene.to_bytes()).decode(),
        "script": f"{joined_module()}\nopenPage();",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _static("page.html"))


_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.{1,2}/[\w./-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async function|function|const|let|class)\b)", re.MULTILINE)
# A comment of some lines or within one, one that is a line, or the last of a line: no text ends after it, so none
# begins before it.
_COMMENT = re.compile(
    r"""/\*\*(?:[^*]|\*(?!/))*\*/ ?|^[ \t]*//[^\n]*|[ \t]+// [^\n"'`]*$""", re.MULTILINE
)
_INDENTATION = re.compile(r"^\s+", re.MULTILINE)
# Declarations of a line each, one below the other
_DECLARATIONS = re.compile(r"(?:^const [^\n]*;\n)+", re.MULTILINE)
_LAST_SIGN = re.compile(r",(?=\n[)}\]])|;(?=\n\})")
_REMOVED = (_IMPORT, _COMMENT, _INDENTATION, _EXPORT, _LAST_SIGN)
# A text, which stays as it is, or a sign that no space need stand beside: + and − and / may keep two apart.
_TEXT_OR_SIGN = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|`[^`]*`)|\s*([(){}\[\],;:?=<>&|!*%]|\s?(?<![-+])[-+/](?=\s[^-+/]))\s*"""
)


def joined_module(entry: str = "page.js") -> str:
    """Joins a file of `static/js` and all that it imports to one module, without comments and needless spaces.

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
    folder = PurePosixPath(name).parent
    for path in _IMPORT.findall(text):
        _gather(os.path.normpath(folder / path), files, (*above, name))
    files[name] = text


def _stripped(text: str) -> str:
    for pattern in _REMOVED:
        text = pattern.sub("", text)
    text = _DECLARATIONS.sub(lambda found: found[0].replace(";\nconst ", ",\n"), text)
    text = _TEXT_OR_SIGN.sub(lambda found: found[1] or found[2].strip(), text)
    return text.strip() + "\n"


def _static(name: str) -> str:
    file = resources.files("convattn.viewer") / "static" / name
    return file.read_text(encoding="utf-8")
