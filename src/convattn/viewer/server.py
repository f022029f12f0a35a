"""The page on a local server."""

import base64
import contextlib
import hashlib
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from convattn.errors import ArgumentError, MissingDependencyError, must_be
from convattn.viewer.page import page_html
from convattn.viewer.scene import Scene

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingDependencyError((error.name or "starlette").partition(".")[0], "view") from None

LARGEST = 512 * 2**20
"""Bytes that the tensors of a scene may have that is served; they stay in memory."""

CLIENTS = 200
"""Connections at a time; further ones are told to come later (503)."""

_HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_SCRIPT = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)


def policy(page: str) -> str:
    """Returns the rule for browsers: nothing from elsewhere, and no script but those of the page, by their digest."""
    digests = [hashlib.sha256(text.encode()).digest() for text in _SCRIPT.findall(page)]
    scripts = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def names_this_machine(host: str) -> bool:
    """Tells whether a Host header is an IP address or localhost, which a hostile page cannot send.

    A hostile page makes its own name point here (DNS rebinding), and its requests carry that name. An address or
    localhost cannot be rebound.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost":
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware: refuses other names of this machine (421) and other pages (403), and adds the headers."""

    def __init__(self, app: ASGIApp, rule: str) -> None:
        """Takes the application that is behind, and the rule for browsers."""
        self._app = app
        headers = {"content-security-policy": rule, **_HEADERS}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or hands the request on."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        app: ASGIApp = self._app
        if scope["type"] == "http":
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            host, origin = headers.get("host", ""), headers.get("origin")
            if not names_this_machine(host):
                app = _refusal(421, f"this server does not answer for {host!r}; use its address")
            elif origin is not None and origin != f"http://{host}":
                app = _refusal(403, f"requests from pages of {origin!r} are not taken")
        await app(scope, receive, send_guarded)


def _refusal(status: int, message: str) -> Response:
    return PlainTextResponse(message, status, {"connection": "close"})


def make_app(scene: Scene) -> ASGIApp:
    """Makes the application (ASGI): the page and its scene; nothing is read from the disk."""
    page, content = page_html(scene.header["title"]), scene.to_bytes()

    async def index(_: Request) -> Response:
        return HTMLResponse(page)

    async def scene_file(_: Request) -> Response:
        return Response(content, media_type="application/octet-stream")

    return Guard(Starlette(routes=[Route("/", index), Route("/scene", scene_file)]), policy(page))


def listening(host: str, port: int) -> socket.socket:
    """Opens the socket that the server listens on; raises ArgumentError if the host or the port cannot be used."""
    if not 0 <= port <= 65535:
        raise ArgumentError(must_be("port", "between 0 and 65535", port))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if b"\0" in host.encode("idna"):  # which Python refuses after it has opened a socket
            raise UnicodeError("a null character in it")
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", error)).partition(" (while")[
            0
        ]  # Python adds the address
        raise ArgumentError(
            f"cannot serve at {host}, port {port} ({reason}); give another port, or 0 for a free one, or another host"
        ) from None


def serve(scene: Scene, opened: socket.socket) -> None:
    """Serves on a socket that listens, until Ctrl-C or SIGTERM; lets requests end before it returns."""
    config = uvicorn.Config(
        make_app(scene),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's own closes every handler of the process
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CLIENTS,
        timeout_graceful_shutdown=5,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[opened])
