"""Values of options that build a network."""

import pytest

from convattn.cli.network_options import read_value

VALUES = {
    "3": 3,
    "[2, 5]": [2, 5],
    "true": True,
    "null": None,
    "avg": "avg",
    "3x": "3x",
    '"3"': "3",
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_a_value_is_json_or_else_text(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)
