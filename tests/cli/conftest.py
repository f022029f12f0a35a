"""No test of a command opens a browser."""

import webbrowser

import pytest


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """The addresses of the pages that a command would have opened."""
    addresses = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses
