"""Joins the page's JavaScript files into one ES module, which needs no server and no build."""

import re
from collections.abc import Iterable
from importlib import resources
from pathlib import PurePosixPath

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
