"""The server: what it answers, and what it refuses."""

import importlib
import pickle
import re
import socket
import sys
from pathlib import Path

import httpx
import pytest
import uvicorn
from tests.viewer.hosts import Toy, complete, served

from convattn.errors import ArgumentError, DataError, MissingDependencyError
from convattn.viewer import server
from convattn.viewer.live import RefusedError, RowsRequest
from convattn.viewer.server import Guard, listening, make_app, names_this_machine, serve

ROWS = "/rows?network=0&image=0&row=3&col=4.5"


@pytest.fixture(scope="module")
def toy():
    return Toy()


@pytest.fixture(scope="module")
def client(toy):
    with served(toy) as client:
        yield client


def raw(client, text):
    """Sends bytes as they are, and returns the first line of the answer."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as connection:
        connection.sendall(text.encode("latin-1"))
        return connection.makefile("rb").readline().decode()


def test_it_serves_the_page_and_what_it_asks_for(client, toy):
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert "<title>Toy</title>" in client.get("/").text
    assert client.get("/scene").content == b"scene"
    assert client.get(ROWS).content == b"rows"
    assert toy.asked[-1] == RowsRequest(0, 0, (3.0, 4.5), "both")
    client.get("/rows?network=0&image=mean&prefix=1&part=content")
    assert toy.asked[-1] == RowsRequest(0, "mean", 1, "content")
    assert client.get("/rows?network=1&image=0&row=0&col=0").status_code == 400


def test_the_reference_has_every_route_value_and_code(toy):
    folder = Path(server.__file__).parent
    code = "".join(path.read_text() for path in (folder / "server.py", folder / "live.py"))
    page = (folder.parents[2] / "docs" / "reference" / "formats.md").read_text().partition("## The page server")[2]
    rows = re.findall(r"^\| ([^|]+) \|", page.partition("## Addresses")[0], flags=re.MULTILINE)
    assert {row.strip("`") for row in rows if "/" in row} == {route.path for route in make_app(toy)._app.routes}
    by_framework = {"404", "405", "500", "503"}
    assert {row for row in rows if row.isdigit()} == set(
        re.findall(r"(?:RefusedError|_refusal)\((\d+)", code)
    ) | by_framework
    names = {name for row in rows for name in re.findall("`([a-z]+)`", row)}
    assert names == set(re.findall(r'(?:_whole|_number|given\.get)\((?:given, )?"(\w+)"', code))


@pytest.mark.parametrize("path", ["/", "/scene", "/nothing", ROWS])
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


@pytest.mark.parametrize("path", ["/", "/scene", ROWS])
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
    assert raw(client, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").split()[1] == "404"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "network is missing"),
        ("network=0&image=0&row=1", "col is missing"),
        ("network=0&image=0&row=nan&col=0", "row must be a number, but is 'nan'"),
        ("network=0&image=0&row=1&col=" + "9" * 400, "col must be a number"),
        ("network=-1&image=0&row=1&col=1", "network must be a whole number from 0"),
        ("network=0&image=1.5&row=1&col=1", "image must be a whole number from 0"),
        ("network=0&image=x&row=1&col=1", "image must be a number, but is 'x'"),
        ("network=0&image=0&prefix=one", "prefix must be a number"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(client, query, told):
    answer = client.get(f"/rows?{query}")
    assert answer.status_code == 400
    assert told in answer.text


def test_wrong_methods_and_what_is_no_http(client):
    assert client.put("/scene").status_code == 405
    assert client.post("/scene").status_code == 405
    assert raw(client, "nonsense\r\n\r\n").split()[1] == "400"


def test_a_port_that_is_taken_is_told():
    with listening("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(ArgumentError, match=rf"port {port} \(Address already in use\); give another port, or 0"):
            listening("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("127.0.0.1", 70000, "port must be between 0 and 65535"), ("no such host", 0, "cannot serve at no such host")],
)
def test_a_host_or_a_port_that_cannot_be_is_told(host, port, message):
    with pytest.raises(ArgumentError, match=message):
        listening(host, port)


def test_a_server_that_is_stopped_by_ctrl_c_ends_in_silence(monkeypatch):
    """Its sockets are those that it was given, so that the address was known before."""
    seen = []

    def run(own, sockets):
        seen.append((own.config, sockets))
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with listening("127.0.0.1", 0) as opened:
        serve(Toy(), opened)
        [(config, sockets)] = seen
        assert sockets == [opened]
    assert (config.limit_concurrency, config.timeout_graceful_shutdown) == (server.CLIENTS, 5)
    assert (config.access_log, config.server_header, config.date_header) == (False, False, False)
    assert complete(_get(config.app, "/scene")).content == b"scene"


async def _get(app, path):
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


def test_an_error_that_is_no_refusal_is_one_of_the_server():
    class Broken(Toy):
        def scene_bytes(self):
            raise DataError("the network is gone")

    answer = complete(_get(make_app(Broken()), "/scene"))
    assert (answer.status_code, answer.text) == (500, "the network is gone")


@pytest.mark.parametrize(("missing", "module"), [("starlette", "starlette.applications"), ("uvicorn", "uvicorn")])
def test_without_its_packages_it_says_what_to_install(missing, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "convattn.viewer.server")
    with pytest.raises(MissingDependencyError, match=f"this needs {missing}, which is not installed; run: pip install"):
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


def test_a_refusal_goes_from_one_process_to_another():
    again = pickle.loads(pickle.dumps(RefusedError(413, "too large")))
    assert (type(again), again.status, str(again)) == (RefusedError, 413, "too large")


def test_it_serves_on_after_all_of_this(client):
    assert client.get("/scene").content == b"scene"
