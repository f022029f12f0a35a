"""Fills the templates of the laboratory's pages, which are HTML or Markdown."""

from base64 import b64encode
from math import isnan
from pathlib import Path
from typing import Any

from convattn.errors import optional_module
from convattn.lab.tables import cell


def fill_template(template: str, **contents: Any) -> str:
    """Fills a template in the folder of this file.

    Text in HTML is escaped. The filter `cell` makes a cell of a table in Markdown, `number` formats a number, and
    one that is unknown as "–", and `base64` encodes a picture, as bytes.
    """
    jinja2 = optional_module("jinja2", "analyze")
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    pages.filters |= {"cell": cell, "number": _number, "base64": b64encode}
    return pages.get_template(template).render(**contents).lstrip()


def _number(value: float, form: str) -> str:
    return "–" if isnan(value) else format(value, form)
