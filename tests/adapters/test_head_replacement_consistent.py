"""Reports that were edited so that they contradict themselves are refused by layer and field before they are used."""

import re
from dataclasses import replace
from math import inf, nan

import pytest
from tests.adapters.report_cases import attention_maps, every_head, images, report_of, timm_vit

from convattn.errors import ArgumentError
from convattn.heads.head_report import HeadReport
from convattn.heads.replace import replace_convolutional_heads

WEIGHTS = (1 / 36,) * 36
"""A map of the class token over itself and 5 × 7 patches."""


def first(*shift):
    """Exchanges the first displacement."""
    return lambda layer: {"displacements": (shift, *layer.displacements[1:])}


def renumbered(*numbers):
    """Gives the heads other numbers."""

    def change(layer):
        heads = tuple(replace(head, head=number) for head, number in zip(layer.heads, numbers, strict=True))
        return {"measured": replace(layer.measured, heads=heads)}

    return change


def with_head(**changes):
    """Changes the first head."""

    def change(layer):
        heads = (replace(layer.heads[0], **changes), *layer.heads[1:])
        return {"measured": replace(layer.measured, heads=heads)}

    return change


SHARES = "prefix_weights of head 0 must be 1 shares of sum at most 1, one for each prefix token, but is "
MAPS = "prefix_maps of head 0 must be "
CASES = {
    "no grid": (lambda _: {"grid": ()}, "grid must be sizes of at least 1, but is ()"),
    "an empty grid": (lambda _: {"grid": (0, 0)}, "grid must be sizes of at least 1, but is (0, 0)"),
    "a negative grid": (lambda _: {"grid": (-5, -7)}, "grid must be sizes of at least 1, but is (-5, -7)"),
    "a grid of one axis": (lambda _: {"grid": (35,)}, "displacements must be along 1 axes, as its grid, but is (-4.0,"),
    "a grid of a sequence": (
        lambda _: {"pattern": "sequence"},
        "grid must be of one axis, as its pattern is a sequence",
    ),
    "a larger grid": (lambda _: {"grid": (5, 8)}, f"{MAPS}of 41 weights, one for each token, but is 36"),
    "negative prefix": (lambda _: {"prefix": -1}, "prefix must be at least 0, but is -1"),
    "no prefix": (lambda _: {"prefix": 0}, "prefix_weights of head 0 must be 0 shares"),
    "equal numbers": (renumbered(0, 0, 0), "heads must be numbered from 0 in their order, but is [0, 0, 0]"),
    "reversed numbers": (renumbered(2, 1, 0), "heads must be numbered from 0 in their order, but is [2, 1, 0]"),
    "displacements, nan": (first(nan, 0.0), "displacements must be within the report's radius of 6, but is (nan, 0.0)"),
    "displacements, inf": (first(inf, 0.0), "displacements must be within the report's radius of 6, but is (inf, 0.0)"),
    "displacements, far": (first(1e6, 0.0), "displacements must be within the report's radius of 6, but is (1000000.0"),
    "displacements, twice": (first(0.0, 0.0), "displacements must be different from each other, but is (0.0, 0.0)"),
    "displacements, one axis": (first(1.0), "displacements must be along 2 axes, as its grid, but is (1.0,)"),
    "displacements, three axes": (first(1.0, 0.0, 0.0), "displacements must be along 2 axes, as its grid"),
    "shares, none": (with_head(prefix_weights=()), f"{SHARES}()"),
    "shares, nan": (with_head(prefix_weights=(nan,)), f"{SHARES}(nan,)"),
    "shares, negative": (with_head(prefix_weights=(-1.0,)), f"{SHARES}(-1.0,)"),
    "shares, above 1": (with_head(prefix_weights=(5.0,)), f"{SHARES}(5.0,)"),
    "maps, none": (with_head(prefix_maps=()), f"{MAPS}1, one for each prefix token, but is 0"),
    "maps, one more": (with_head(prefix_maps=(WEIGHTS, (1.0,))), f"{MAPS}1, one for each prefix token, but is 2"),
    "maps, short": (with_head(prefix_maps=((1.0,),)), f"{MAPS}of 36 weights, one for each token, but is 1"),
    "maps, zeros": (with_head(prefix_maps=((0.0,) * 36,)), f"{MAPS}weights of at least 0, not all of them 0"),
    "maps, nan": (with_head(prefix_maps=((nan, *WEIGHTS[1:]),)), f"{MAPS}weights of at least 0, not all of them 0"),
    "maps, negative": (with_head(prefix_maps=((-1.0, *WEIGHTS[1:]),)), f"{MAPS}weights of at least 0"),
}


@pytest.mark.parametrize("name", CASES)
def test_reports_that_contradict_themselves(name):
    network = timm_vit()
    report = report_of(network, attention_maps(network, images()))
    change, message = CASES[name]
    layer = report.layers[1]
    edited = replace(report, layers=(report.layers[0], replace(layer, **change(layer))))
    again = HeadReport.from_json(edited.to_json())
    expected = f"report must agree with itself, but blocks.1.attn: {message}"
    with pytest.raises(ArgumentError, match="^" + re.escape(expected)):
        replace_convolutional_heads(network, again, heads=every_head(report))


def test_what_is_not_used_may_be_anything():
    network = timm_vit()
    report = report_of(network, attention_maps(network, images()))
    layer = report.layers[0]
    edited = replace(layer, **with_head(prefix_maps=(), prefix_weights=(nan,))(layer))
    whole = replace(report, layers=(edited, report.layers[1]))
    _, record = replace_convolutional_heads(network, whole, heads=[(layer.name, 1)])
    assert len(record.replaced) == 1
