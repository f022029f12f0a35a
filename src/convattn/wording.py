"""Words of messages and summaries: counts, lists of names, and what conversions lose."""

from collections.abc import Sequence

ITSELF = "the network itself"
"""Shown in place of the empty name of a module."""

DIFFERS = "by attention outside the window (the leak), and at borders, where attention keeps to pixels that exist"
"""What a convolution loses of attention whose heads are not hard."""

TO_CONV = "by a larger window, or none; at borders by layers that pad with zeros as far as their heads look"
"""What makes a convolution closer to the attention that it stands for."""

TO_ATTENTION = "by more sharpness, or none: hard heads are exact"
"""What makes attention closer to the convolution that it stands for."""


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
