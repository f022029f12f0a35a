"""Words of messages and summaries: counts and lists of names."""

from collections.abc import Sequence

ITSELF = "the network itself"
"""Shown in place of the empty name of a module."""


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, given in the singular.

    Example:
        >>> counted(1, "head"), counted(9, "head")
        ('1 head', '9 heads')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some(names: Sequence[str]) -> str:
    """Names the first three of several modules or tensors, and says how many more there are.

    Example:
        >>> some(["stem", "", "a", "b", "c"])
        'stem, the network itself, a and 2 more'
    """
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name or ITSELF for name in names[:3]) + rest


def first_few(lines: Sequence[str], most: int = 5) -> list[str]:
    """Returns the first lines of a list, and in one more how many there are beside them, if that is more than one.

    Example:
        >>> first_few(["a", "b", "c", "d"], 2)
        ['a', 'b', 'and 2 more']
    """
    if len(lines) <= most + 1:  # one more line says no more than the last one
        return list(lines)
    return [*lines[:most], f"and {len(lines) - most} more"]
