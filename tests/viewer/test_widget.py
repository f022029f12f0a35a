"""Messages to the widget that are no questions."""

from types import SimpleNamespace

import pytest
from tests.viewer.hosts import Toy

from convattn.viewer.widget import _answer


def _told(content, buffers=()):
    answers = []
    widget = SimpleNamespace(_shown=Toy(), send=lambda answer, data: answers.append((answer, data)))
    _answer(widget, content, list(buffers))
    return answers


@pytest.mark.parametrize("content", [None, [], "rows", 3])
def test_what_is_no_message_has_no_answer(content):
    assert _told(content) == []


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "rows"},
        {"kind": "rows", "asked": {"network": "x", "image": 0, "query": [0, 0], "part": "both"}},
        {"kind": "rows", "asked": {"network": 0, "image": 0, "query": [0], "part": "both"}},
        {"kind": "upload", "name": "x"},
        {"kind": ["rows"]},
    ],
)
def test_a_message_that_makes_no_sense_is_told_so(content):
    [(answer, data)] = _told({"id": "7", **content})
    assert answer["id"] == "7"
    assert answer["error"]
    assert data == []
