"""The page: one HTML file with the module, the style, the texts of the tour and a scene inside."""

import base64
import html
import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path, PurePosixPath

from convattn.files import new_folder, write_atomically
from convattn.viewer.scene import Scene

FOLDER = "static/js"
"""Where the files are in this package."""

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";\n', re.MULTILINE)
_ANY_IMPORT = re.compile(r"^(import\b|export (default|\*|\{)).*", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async function|function|const|let|class)\b)", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:export )?(?:async function\*?|function\*?|const|let|class) ([\w$]+|[{\[])", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:[^*]|\*(?!/))*\*/[ \t]*|//[^\n]*)\n", re.MULTILINE)
_CAST = re.compile(r"/\*\* @type (?:[^*]|\*(?!/))*\*/ ?")
_LAST_COMMENT = re.compile(r"""[ \t]+// [^\n"'`]*$""", re.MULTILINE)  # no text ends after it, so none begins before it
_INDENTATION = re.compile(r"^\s+", re.MULTILINE)


def joined_module(entries: Iterable[str] = ("start.js",)) -> str:
    """Joins files and all that they import, each after what it needs, without comments and indentation.

    No text of the files goes over the end of a line, so that neither is part of one.

    Args:
        entries: Files of the folder `static/js`.

    Returns:
        One module without imports and exports.

    Raises:
        AssertionError: A file uses a form of import or export that cannot be joined, or two files have a name in
            common.
    """
    order: dict[str, str] = {}
    for entry in entries:
        _gather(entry, order, ())
    _require_unique(order)
    return "".join(map(_stripped, order.values()))


def top_level_names(text: str) -> list[str]:
    """Returns the names that a file declares outside of any block."""
    return _TOP_LEVEL.findall(text)


def _gather(name: str, order: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds a file after those that it imports; `above` are the files that import it."""
    if name in order or name in above:  # functions may use each other in a circle
        return
    text = (resources.files("convattn.viewer") / FOLDER / name).read_text(encoding="utf-8")
    for _, path in _IMPORT.findall(text):
        _gather(_resolved(name, path), order, (*above, name))
    order[name] = text


def _resolved(name: str, path: str) -> str:
    """Returns the file that an import in another names."""
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _stripped(text: str) -> str:
    bare = _EXPORT.sub("", _IMPORT.sub("", text))
    left = _ANY_IMPORT.search(bare)
    assert left is None, f"cannot join {left[0]!r}"
    return _INDENTATION.sub("", _LAST_COMMENT.sub("", _CAST.sub("", _COMMENT.sub("", bare)))).strip() + "\n"


def _require_unique(files: dict[str, str]) -> None:
    """Raises if two files declare the same name, or a file renames what it imports."""
    owners: dict[str, str] = {}
    for name, text in files.items():
        for imported, _ in _IMPORT.findall(text):
            assert " as " not in imported, f"{name} renames what it imports"
        for declared in top_level_names(text):
            assert declared not in "{[", f"{name} takes apart a value outside of any block"
            assert declared not in owners, f"{name} and {owners[declared]} both declare {declared}"
            owners[declared] = name


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
