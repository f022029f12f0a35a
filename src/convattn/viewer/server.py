"""The page on a local server, for networks in memory."""

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import math
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from convattn.errors import ArgumentError, ConvAttnError, MissingDependencyError, must_be
from convattn.viewer.live import Asked, Exhibition, RefusedError, read_picture
from convattn.viewer.page import page_html

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

_SCRIPT = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)


def policy(page: str) -> str:
    """Returns the rule for browsers: nothing from elsewhere, and no script but those of the page, by their digest."""
    digests = [hashlib.sha256(text.encode()).digest() for text in _SCRIPT.findall(page)]
    scripts = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def names_this_machine(host: str) -> bool:
    """Tells whether a Host header is one that a page of somebody else's cannot have sent.

    A hostile page makes its own name point here (DNS rebinding) and its requests carry that name. An address, or
    localhost, is nobody's to give away.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware: refuses other names of this machine (421) and other pages (403), and adds the headers."""

    def __init__(self, app: App, rule: str) -> None:
        """Takes the application that is behind, and the rule for browsers."""
        self._app = app
        headers = {"content-security-policy": rule, **HEADERS}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answers, or hands the request on."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if not names_this_machine(host):
            return await _refuse(send_guarded, 421, f"this server does not answer for {host!r}; use its address")
        if origin is not None and origin != f"http://{host}":
            return await _refuse(send_guarded, 403, f"requests from pages of {origin!r} are not taken")
        return await self._app(scope, receive, send_guarded)


async def _refuse(send: Callable[[Message], Awaitable[None]], status: int, message: str) -> None:
    body = message.encode("utf-8", "replace")
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


CLIENTS = 200
"""Connections at a time; further ones are told to come later (503)."""


HEADER_SECONDS = 10.0
"""Time from the opening of a connection, or the end of an answer, in which a request's headers must have come."""


def make_app(shown: Exhibition) -> Any:
    """Makes the application (ASGI): the page and what it asks for; nothing is read from the disk."""
    require_packages()
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    page = page_html(shown.title, entry="start-server.js", start="openServerPage();")
    uploads = asyncio.Semaphore(shown.limits.uploads)

    async def index(request: Request) -> Response:  # noqa: ARG001 - what starlette calls it with
        return HTMLResponse(page)

    async def scene(request: Request) -> Response:  # noqa: ARG001
        return _tensors(await run_in_threadpool(shown.scene_bytes))

    async def rows(request: Request) -> Response:
        asked = read_asked(request.query_params)
        return _tensors(await run_in_threadpool(shown.rows, asked))

    async def images(request: Request) -> Response:
        name = request.query_params.get("name", "picture")[:100]
        async with uploads:
            try:
                data = await _read_body(request, shown.limits.file_bytes, shown.limits.seconds)
            except ClientDisconnect:
                raise RefusedError(400, "the sender went away") from None  # and sees no answer
            picture = await run_in_threadpool(read_picture, data, shown.limits, name)
        return _tensors(await run_in_threadpool(shown.add, picture, name))

    def _tensors(body: bytes) -> Response:
        return Response(body, media_type="application/octet-stream")

    async def refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001
        status = error.status if isinstance(error, RefusedError) else 500
        headers = {"connection": "close"} if status in (408, 413) else None
        return PlainTextResponse(str(error), status, headers)

    routes = [
        Route("/", index),
        Route("/scene", scene),
        Route("/rows", rows),
        Route("/images", images, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={ConvAttnError: refuse}), policy(page))


async def _read_body(request: Any, limit: int, seconds: float) -> bytes:
    """Reads what is sent, and no more than allowed; raises RefusedError of 408 or 413."""
    data, count = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                count += len(chunk)
                if count <= limit:
                    data += chunk
                else:
                    data.clear()  # what is too large is read to its end all the same, or the sender sees no answer
    except TimeoutError:
        raise RefusedError(408, f"the file did not come within {seconds:g} s") from None
    if count > limit:
        raise RefusedError(413, f"the file has {count:,} bytes; at most {limit:,} are taken")
    return bytes(data)


def read_asked(given: Mapping[str, str]) -> Asked:
    """Reads what the address of a request asks for, or raises RefusedError of 400."""

    def number(name: str) -> float:
        if name not in given:
            raise RefusedError(400, f"{name} is missing")
        with contextlib.suppress(ValueError):
            if math.isfinite(found := float(given[name])):
                return found
        raise RefusedError(400, must_be(name, "a number", given[name][:40]))

    def whole(name: str) -> int:
        found = number(name)
        if not (found.is_integer() and found >= 0):
            raise RefusedError(400, must_be(name, "a whole number from 0", given[name][:40]))
        return int(found)

    network = whole("network")
    query = whole("prefix") if "prefix" in given else (number("row"), number("col"))
    image = "mean" if given.get("image") == "mean" else whole("image")
    return Asked(network, image, query, given.get("part", "both"))


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Opens the socket that the server listens on; a port that is taken raises ArgumentError."""
    if not 0 <= port <= 65535:
        raise ArgumentError(must_be("port", "between 0 and 65535", port))
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ArgumentError(f"cannot serve at the host {host!r}: {error}") from None
    with socket.socket(family, kind, protocol) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(address)
        except OSError as error:
            raise ArgumentError(
                f"cannot serve at {host}, port {port} ({error.strerror}); give another port, or 0 for any that is free"
            ) from None
        opened.listen(128)
        yield opened


def require_packages() -> None:
    """Raises MissingDependencyError unless what the server is made of is installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingDependencyError(package, "view")


def impatient_protocol() -> type[asyncio.Protocol]:
    """Makes uvicorn's HTTP protocol with a time limit for headers: connections that wait are counted in `CLIENTS`."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._watch()

        def _watch(self) -> None:
            """Lets time run while headers are awaited; what comes of them does not prolong it."""
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self.deadline is None and not self.transport.is_closing():
                self.deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

        def _forget(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Impatient


def serve(shown: Exhibition, opened: socket.socket) -> None:
    """Serves until Ctrl-C or SIGTERM, and lets requests end before it returns.

    Args:
        shown: The networks and images.
        opened: A socket that listens.

    Raises:
        MissingDependencyError: uvicorn or starlette is not installed.
    """
    require_packages()
    import uvicorn

    config = uvicorn.Config(
        make_app(shown),
        loop="asyncio",
        http=impatient_protocol(),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CLIENTS,
        timeout_graceful_shutdown=5,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[opened])
