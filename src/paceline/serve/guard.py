"""Access control of the page: Host header, token in the address, and security headers of every answer."""

from __future__ import annotations

from collections.abc import Collection
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.hosts import LOOPBACK, host_of

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware that passes only requests with a host of this server, from its page, with the token first in the path.

    Args:
        hosts: legal names in the Host header. They stop other pages whose name resolves to this machine (DNS rebinding).
        token: first part of the path; empty: none.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK, token: str = "") -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(scope)
        app = PlainTextResponse(*refused) if refused else self._app
        await app(scope if refused else self._without_token(scope), receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[str, int] | None:
        """Return why a request is refused, and its status."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host_of(host) not in self._hosts:
            return "This server does not have that name.\n", 421
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "Only its own page may ask this server.\n", 403
        if self._token and not compare_digest(self._first(scope), self._token.encode()):
            return "The address lacks the token that the server printed.\n", 404
        return None

    def _first(self, scope: Scope) -> bytes:
        return str(scope["path"]).split("/", 2)[1].encode() if scope["path"].startswith("/") else b""

    def _without_token(self, scope: Scope) -> Scope:
        """Return the request with its path after the token."""
        if not self._token:
            return scope
        rest = scope["path"].removeprefix(f"/{self._token}") or "/"
        return {**scope, "path": rest, "raw_path": rest.encode()}
