"""In what a network differs from another one, which it is to be: a new one on saving, the saved one on loading."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from convattn.structure import LIBRARIES
from convattn.wording import ITSELF

_LONGEST = 120
"""Characters of a value that a message shows as a whole."""


Modules: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Modules by name, as `Structure.modules` describes them."""


class Difference(NamedTuple):
    """One thing in which two networks differ."""

    module: str  # Name of the module
    key: str  # Its attribute, or empty for the module itself
    found: str | None  # What it is; None if it is missing
    expected: str | None  # What it is in the other network

    def __str__(self) -> str:
        """Says what was found and what was expected."""
        place = self.module or ITSELF
        if self.key:
            place = f"{self.module}.{self.key}".removeprefix(".")
        if self.expected is None:
            return f"{place} ({self.found}) is added"
        if self.found is None:
            return f"{place} ({self.expected}) is missing"
        start = 0
        while self.found[: start + 1] == self.expected[: start + 1]:
            start += 1
        return f"{place} is {_around(self.found, start)}, not {_around(self.expected, start)}"


def _around(text: str, place: int) -> str:
    """Returns a text, cut to what is around a place if it is long."""
    if len(text) <= _LONGEST:
        return text
    return f"…{text[max(place - 40, 0) : place + 40]}…"


def differences(modules: Modules, others: Modules) -> Iterator[Difference]:
    """Yields in what the modules of a network differ from those of another.

    Of a module that one of them lacks, the modules inside are not named. Attributes that only one of two modules of a
    library has are passed over: they come with another version. So are private ones and containers that only one side
    has filled, which may come with running.
    """
    for name in dict.fromkeys([*modules, *others]):
        if name in modules and name in others:
            yield from _module_differences(name, modules[name], others[name])
        elif not name or name.rpartition(".")[0] in modules.keys() & others.keys():
            yield Difference(name, "", _class_of(modules, name), _class_of(others, name))
    if modules.keys() == others.keys():
        for found, expected in zip(modules, others, strict=True):
            if found != expected:
                yield Difference("the next module in order", "", found, expected)
                return


def _class_of(modules: Modules, name: str) -> str | None:
    return f"a {modules[name]['class']}" if name in modules else None


def _module_differences(
    name: str, module: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[Difference]:
    if not _is_same(module["class"], other["class"]):
        yield Difference(name, "", f"a {module['class']}", f"a {other['class']}")
    is_library = module["class"].startswith(LIBRARIES)
    for kind in ("attributes", "contents", "parts"):
        old, new = module[kind], other[kind]
        for key in dict.fromkeys([*old, *new]):
            texts = old.get(key), new.get(key)
            is_optional = None in texts and (is_library or key.startswith("_")) and kind != "parts"
            is_filled = kind == "contents" and "()" in texts
            if not (is_optional or is_filled or _is_same(*texts)):
                yield Difference(name, key, *texts)


def first_differences(modules: Modules, others: Modules) -> str:
    """Says the first three differences, and whether there are more; empty if there are none."""
    words = list(map(str, islice(differences(modules, others), 4)))
    if len(words) > 3:
        words[3] = "and more"
    return "; ".join(words)


def _is_same(one: str | None, other: str | None) -> bool:
    """Returns whether two descriptions agree.

    What a script defines may be imported from its file later. A tensor on the device "meta" has no digest.
    """
    texts = one or "", other or ""
    for text, rest in (texts, texts[::-1]):
        name = text.removeprefix("__main__")
        if name != text and rest.endswith(name):
            return True
        if text and rest.startswith(f"{text} of digest "):
            return True
    return one == other
