"""What every answer of the server says to browsers, and which requests it does not take."""

import base64
import hashlib
import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Guard", "names_this_machine", "policy"]

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
