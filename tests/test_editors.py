"""What a user's editor says: the README's lines pass pyright, and hovering a layer shows its arguments."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import convattn

ROOT = Path(__file__).parents[1]
BUILT = """from convattn import RelativeAttention2d

layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic", kernel_size=3, padding=1)
"""
PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def place(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    return tmp_path


LINES = {
    "layer.encoding.sharpness = 2.0": 0,
    "layer.encoding = layer.encoding.soften(5.0)": 0,
    "layer.encoding = 5.0": 1,
    "layer.stride = 5": 1,
}
"""Lines of the README, and the number of errors in each."""


def test_pyright_on_lines_of_the_readme(place):
    for number, line in enumerate(LINES):
        (place / f"{number}.py").write_text(f"{BUILT}{line}\n")
    command = [
        PROGRAMS / "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(place),
    ]
    answer = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    )
    assert answer["summary"]["filesAnalyzed"] == len(LINES)
    wrong = [
        Path(one["file"]).stem for one in answer["generalDiagnostics"] if one["severity"] == "error"
    ]
    assert sorted(wrong) == [
        str(number) for number, errors in enumerate(LINES.values()) for _ in range(errors)
    ]


class LanguageServer:
    """pyright as an editor runs it: JSON messages, each after a line with its length."""

    def __init__(self, place):
        self.process = subprocess.Popen(
            [PROGRAMS / "pyright-langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            cwd=place,
        )

    def send(self, **message):
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.send(id=method, method=method, params=params)
        while True:
            size = 0
            while line := self.process.stdout.readline().strip():
                size = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else size
            if not size:
                raise EOFError("pyright has ended")
            message = json.loads(self.process.stdout.read(size))
            if message.get("id") == method and "method" not in message:
                return message["result"]
            if "id" in message:  # the server asks for the editor's settings
                items = message.get("params", {}).get("items", ())
                self.send(id=message["id"], result=[{"pythonPath": sys.executable} for _ in items])


def test_hovering_a_layer_shows_its_arguments_and_errors(place):
    uri, server = (place / "program.py").as_uri(), LanguageServer(place)
    try:
        formats = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        folder = {"uri": place.as_uri(), "name": "place"}
        server.ask(
            "initialize",
            processId=None,
            rootUri=None,
            capabilities=formats,
            workspaceFolders=[folder],
        )
        server.send(method="initialized", params={})
        document = {"uri": uri, "languageId": "python", "version": 1, "text": BUILT}
        server.send(method="textDocument/didOpen", params={"textDocument": document})
        where = {"line": 2, "character": BUILT.splitlines()[2].index("Relative") + 3}
        shown = server.ask("textDocument/hover", textDocument={"uri": uri}, position=where)[
            "contents"
        ]["value"]
    finally:
        server.process.kill()
        server.process.communicate()
    assert shown.startswith("class RelativeAttention2d(")
    for argument in (
        "num_heads",
        "encoding",
        "head_width",
        "kernel_size",
        "impl",
        "gate",
        "dtype",
    ):
        assert f"\n    {argument}: " in shown.partition("Args:")[2]
    assert "in pixels" in shown
    assert "ArgumentError: An argument is out of range" in shown.partition("Raises:")[2]


@pytest.mark.parametrize(
    "name", [name for name in convattn.__all__ if "RelativeAttention" in name and "2d" not in name]
)
def test_layers_of_other_axes_name_the_class_that_lists_their_arguments(name):
    assert f"`{name[:-2]}2d`" in getattr(convattn, name).__doc__


def test_the_name_of_a_layer_alone_shows_every_argument():
    layer = convattn.RelativeAttention2d
    listed = layer.__doc__.partition("Args:")[2].partition("Example:")[0]
    assert ">>> " in layer.__doc__.partition("Example:")[2]
    signature = inspect.signature(layer.__init__).parameters.values()
    words = [one.name for one in signature if one.name != "self"]
    assert [
        line.split(":")[0].strip() for line in listed.splitlines() if re.match(r" {8}[*a-z]", line)
    ] == words
