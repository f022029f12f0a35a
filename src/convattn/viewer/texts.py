"""Texts of a scene: what comes from outside must be text, and of characters that a picture of the page can hold."""

import re
from collections.abc import Iterable
from typing import Any

from convattn.errors import ArgumentError, must_be

__all__ = ["readable", "require_texts"]

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0, section 2.2, does not allow, and so no SVG that the page saves."""


def readable(text: str) -> str:
    r"""Returns a text with U+FFFD in place of each character that XML forbids.

    Example:
        >>> readable("a\x01b") == "a\ufffdb"
        True
    """
    return _FORBIDDEN.sub("\ufffd", text)


def require_texts(argument: str, texts: Any) -> None:
    """Raises ArgumentError unless something is a list of texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(one, str) for one in texts):
        raise ArgumentError(must_be(argument, "a list of texts", texts))
