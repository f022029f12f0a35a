"""The widget: what it answers to messages, what it writes in a notebook, and what it needs."""

import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from tests.viewer.hosts import Toy
from tests.viewer.test_server import picture

from convattn.errors import MissingDependencyError
from convattn.viewer.live import Limits, RowsRequest
from convattn.viewer.notebook import VIEW, _answer, _widget_class, frame


def _told(content, buffers=(), shown=None):
    answers = []
    widget = SimpleNamespace(_shown=shown or Toy(), send=lambda answer, data: answers.append((answer, data)))
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
        {"kind": "rows", "asked": {"network": "x", "image": 0, "row": 0, "col": 0}},
        {"kind": "rows", "asked": {"network": 0, "image": 0, "row": [0], "col": 0}},
        {"kind": "upload", "name": "x"},
        {"kind": ["rows"]},
    ],
)
def test_a_message_that_makes_no_sense_is_told_so(content):
    [(answer, data)] = _told({"id": "7", **content})
    assert answer["id"] == "7"
    assert answer["error"]
    assert data == []


def test_the_page_comes_with_the_scene():
    [(answer, data)] = _told({"id": "2", "kind": "page"})
    assert sorted(answer) == ["id", "text"]
    assert answer["id"] == "2"
    assert "<title>Toy</title>" in answer["text"]
    assert "awaitNotebook();" in answer["text"]
    assert data == [b"scene"]


@pytest.mark.parametrize(
    ("asked", "understood"),
    [
        ({"image": 5, "row": 3, "col": 4.5, "part": "both"}, RowsRequest(0, 5, (3.0, 4.5), "both")),
        ({"image": "mean", "prefix": 1, "part": "content"}, RowsRequest(0, "mean", 1, "content")),
    ],
)
def test_rows_are_those_that_were_asked_for(asked, understood):
    toy = Toy()
    assert _told({"id": "3", "kind": "rows", "asked": {"network": 0, **asked}}, shown=toy) == [({"id": "3"}, [b"rows"])]
    assert toy.asked == [understood]


def test_a_picture_is_added():
    toy = Toy()
    message = {"id": "5", "kind": "upload", "name": "one"}
    assert _told(message, [memoryview(picture(size=(13, 11)))], shown=toy) == [({"id": "5"}, [b"picture"])]
    assert toy.added == [((13, 11), "one")]


@pytest.mark.parametrize(
    ("message", "buffers", "error"),
    [
        ({"kind": "nonsense"}, [], "there is no 'nonsense'"),
        (
            {"kind": "rows", "asked": {"network": 1, "image": 0, "row": 0, "col": 0}},
            [],
            "network must be below 1",
        ),
        ({"kind": "upload", "name": "a.png"}, [bytes(1009)], "the file has 1,009 bytes; at most 1,000 are taken"),
        ({"kind": "upload", "name": "a.png"}, [b"text"], "a.png: this is no picture"),
        ({"kind": "rows"}, [], "KeyError: 'asked'"),
    ],
)
def test_what_goes_wrong_is_told_in_words(message, buffers, error):
    toy = Toy(Limits(file_bytes=1000))
    [(answer, data)] = _told({"id": "7", **message}, buffers, shown=toy)
    assert answer["error"].startswith(error)
    assert (data, toy.asked, toy.added) == ([], [], [])


def test_a_message_reaches_the_widget_that_shows_it(monkeypatch):
    sent = []
    widget = _widget_class()(Toy(), None)
    monkeypatch.setattr(type(widget), "send", lambda _, answer, data: sent.append((answer, data)))
    widget._handle_custom_msg({"id": "9", "kind": "rows", "asked": {"network": 0, "image": 0, "row": 0}}, [])
    assert sent == [({"id": "9", "error": "col is missing"}, [])]
    assert repr(widget) == "<attention maps: Toy>"


@pytest.mark.parametrize("still", [None, "<p title='a'>page & \"copy\"</p>"])
def test_a_notebook_gets_the_live_page_and_below_it_the_copy(still, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append((bundle, raw)))
    widget = _widget_class()(Toy(), still)
    widget._ipython_display_()
    live, *copies = shown
    assert live[0][VIEW]["model_id"] == widget.model_id
    assert live[0]["text/plain"] == "<attention maps: Toy>"
    assert all(raw for _, raw in shown)
    assert [bundle["text/html"] for bundle, _ in copies] == ([] if still is None else [frame(still, widget.copy)])


def test_the_copy_is_a_whole_page_that_sees_nothing_around_it():
    page = "<p title='a'>page & \"copy\"</p>"
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(frame(page, "mark"))
    (outer, mark), (inner, attributes) = tags
    assert (outer, mark) == ("div", {"data-convattn-copy": "mark"})
    assert (inner, attributes["srcdoc"]) == ("iframe", page)
    assert "allow-same-origin" not in attributes["sandbox"]


def test_two_widgets_do_not_hide_each_others_copies():
    make = _widget_class()
    assert make(Toy(), None).copy != make(Toy(), None).copy


def test_without_anywidget_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingDependencyError, match=r"this needs anywidget, which is not installed; run: pip install"):
        _widget_class.__wrapped__()
