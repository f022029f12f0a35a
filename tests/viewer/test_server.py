"""The server: what it answers, and what it refuses."""

import importlib
import re
import socket
import sys
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn
from tests.viewer.hosts import complete, served

from convattn.errors import ArgumentError, MissingDependencyError
from convattn.layers import RelativeAttention2d
from convattn.viewer import Exhibit, build_scene, server
from convattn.viewer.server import Guard, listening, make_app, names_this_machine, serve


@pytest.fixture(scope="module")
def scene():
    return build_scene(
        Exhibit(RelativeAttention2d(3, 4, 2, "quadratic"), torch.zeros(1, 3, 5, 7)), title="Toy"
    )


@pytest.fixture(scope="module")
def client(scene):
    with served(scene) as client:
        yield client


def raw(client, text):
    """Sends bytes as they are, and returns the first line of the answer."""
    with socket.create_connection(
        (client.base_url.host, client.base_url.port), timeout=30
    ) as connection:
        connection.sendall(text.encode("latin-1"))
        return connection.makefile("rb").readline().decode()


def test_it_serves_the_page_and_its_scene(client, scene):
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert "<title>Toy</title>" in client.get("/").text
    assert client.get("/scene").content == scene.to_bytes()


def test_the_reference_has_every_path_and_code(scene):
    code = Path(server.__file__)
    page = (
        (code.parents[3] / "docs" / "reference" / "formats.md")
        .read_text()
        .partition("## The page server")[2]
    )
    rows = re.findall(r"^\| ([^|]+) \|", page.partition("## Addresses")[0], flags=re.MULTILINE)
    assert {row.strip("`") for row in rows if "/" in row} == {
        route.path for route in make_app(scene)._app.routes
    }
    by_framework = {"404", "405", "503"}
    assert {row for row in rows if row.isdigit()} == by_framework | set(
        re.findall(r"_refusal\((\d+)", code.read_text())
    )


@pytest.mark.parametrize("path", ["/", "/scene", "/nothing"])
def test_every_answer_forbids_what_comes_from_elsewhere(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert re.search("script-src 'sha256-[A-Za-z0-9+/=]+';", policy)
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8", True),
        ("127.0.0.1:8", True),
        ("[::1]:8", True),
        ("192.168.0.3", True),
        ("evil.example:8", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[::1", False),
        ("127.0.0.1@evil.example", False),
    ],
)
def test_only_addresses_and_localhost_are_names_of_this_machine(host, own):
    assert names_this_machine(host) == own


@pytest.mark.parametrize("path", ["/", "/scene"])
def test_another_host_is_misdirected(client, path):
    answer = client.get(path, headers={"host": "evil.example"})
    assert (answer.status_code, "does not answer for 'evil.example'" in answer.text) == (421, True)


def test_pages_of_others_may_not_ask(client):
    assert client.get("/scene", headers={"origin": "http://evil.example"}).status_code == 403
    origin = str(client.base_url).rstrip("/")
    assert client.get("/scene", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/static/../server.py",
        "//etc/passwd",
        "/%00",
        "/page.js/../../server.py",
        "/style.css%00.py",
        "/c:\\windows\\win.ini",
        "/scene/../../../pyproject.toml",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    assert (
        raw(client, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").split()[
            1
        ]
        == "404"
    )


def test_wrong_methods_and_what_is_no_http(client):
    assert client.put("/scene").status_code == 405
    assert client.post("/scene").status_code == 405
    assert raw(client, "nonsense\r\n\r\n").split()[1] == "400"


def test_a_port_that_is_taken_is_told():
    with listening("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(
            ArgumentError, match=rf"port {port} \(Address already in use\); give another port, or 0"
        ):
            listening("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "port must be between 0 and 65535"),
        ("no such host", 0, "cannot serve at no such host"),
        ("no..host", 0, r"cannot serve at no\.\.host, port 0 \(.*label"),
        ("no\0host", 0, "cannot serve at no\0host, port 0 \\(.*null"),
    ],
)
def test_a_host_or_a_port_that_cannot_be_is_told(host, port, message):
    with pytest.raises(ArgumentError, match=message):
        listening(host, port)


def test_a_server_that_is_stopped_by_ctrl_c_ends_in_silence(scene, monkeypatch):
    """Its sockets are those that it was given, so that the address was known before."""
    seen = []

    def run(own, sockets):
        seen.append((own.config, sockets))
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with listening("127.0.0.1", 0) as opened:
        serve(scene, opened)
        [(config, sockets)] = seen
        assert sockets == [opened]
    assert (config.limit_concurrency, config.timeout_graceful_shutdown) == (server.CLIENTS, 5)
    assert (config.access_log, config.server_header, config.date_header) == (False, False, False)
    assert complete(_get(config.app, "/scene")).content == scene.to_bytes()


async def _get(app, path):
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("missing", "module"), [("starlette", "starlette.applications"), ("uvicorn", "uvicorn")]
)
def test_without_its_packages_it_says_what_to_install(missing, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "convattn.viewer.server")
    with pytest.raises(
        MissingDependencyError,
        match=f"this needs {missing}, which is not installed; run: pip install",
    ):
        importlib.import_module("convattn.viewer.server")


def test_what_is_no_request_is_handed_on_as_it_is():
    """The messages by which a server starts have no headers to look at."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)
        await send({"type": "lifespan.startup.complete"})

    async def send(message):
        seen.append(message)

    complete(Guard(app, "rule")({"type": "lifespan"}, None, send))
    assert seen == [{"type": "lifespan"}, {"type": "lifespan.startup.complete"}]


def test_it_serves_on_after_all_of_this(client):
    assert client.get("/scene").status_code == 200
