"""Who may talk to the lab: an ASGI application around the whole app, its files and its websocket.

The lab can run code (exercises) and look into files, and every web page that the user has open can
send requests to 127.0.0.1. So the guard asks three things of each request:

- the Host is this machine's own name and our port (a page elsewhere that lets its own name point
  to 127.0.0.1 carries that name);
- the Origin, which browsers send with websockets and with everything that is no plain GET, is our
  own;
- the cookie holds this run's secret. It is given once, for the token in the URL that was opened;
  HttpOnly keeps it from scripts, SameSite=Strict from requests that other sites start.

Pure ASGI and nothing imported: what wraps everything must not depend on what it wraps.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN = "token"
# A config.json is at most 1 MB; a form around it adds some hundred bytes.
MAX_BODY = (1 << 20) + (64 << 10)

# Everything is served from here. The web framework compiles templates (eval) and writes styles.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' ws://{host}; worker-src 'self' blob:; frame-ancestors 'none'; "
    "form-action 'self'; base-uri 'self'; object-src 'none'"
)
REFUSED = (
    "This page belongs to one run of `gateup lab`. Open the address that the command printed; it "
    "carries the token this browser does not have yet."
)


class Guard:
    """`app`, for those who opened the URL of this run.

    port   the server's port: part of the Host and of the cookie's name (cookies know no ports)
    token  what the printed URL carries; the cookie holds another secret, so that a URL in a
           history file is no cookie
    once   a token that is good for one use: that of the URL a browser is started with, which
           other users of the machine can see among its processes
    """

    def __init__(self, app: App, *, port: int, token: str, once: str | None = None) -> None:
        self.app = app
        self.token, self.once = token, once
        self.hosts = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self.cookie = f"gateup-lab-{port}"
        self.secret = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"an ASGI scope of type {scope['type']!r}")

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origin = self._host(scope), _header(scope, b"origin")
        if host is None or origin != f"http://{host}" or not self._knows_secret(scope):
            await receive()  # websocket.connect: a close before it breaks the protocol
            await send({"type": "websocket.close", "code": 1008, "reason": "not this run's"})
            return
        await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origin = self._host(scope), _header(scope, b"origin")
        if host is None:
            await _answer(send, 421, "This server answers to 127.0.0.1 only.")
            return
        plain = scope["method"] in ("GET", "HEAD")
        if (origin is None and not plain) or (origin is not None and origin != f"http://{host}"):
            await _answer(send, 403, "Requests from other sites are refused.")
            return
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in pairs if name == TOKEN]
        if given and plain and self._admits(given[-1]):
            await self._enter(scope, send, [p for p in pairs if p[0] != TOKEN])
            return
        if not self._knows_secret(scope):
            await _answer(send, 403, REFUSED)
            return
        await self._pass(scope, receive, send, host)

    def _admits(self, given: str) -> bool:
        if self.once is not None and _same(given, self.once):
            self.once = None
            return True
        return _same(given, self.token)

    async def _enter(self, scope: Scope, send: Send, pairs: Iterable[tuple[str, str]]) -> None:
        """Give the cookie, and go on to the same URL without the token.

        A page that refreshes, not a 303: after a click in another site's page (a notebook's, say)
        browsers send no Strict cookie along a redirect, but do from a page of our own.
        """
        # The raw path is what was asked for; "//host" at its start would lead elsewhere.
        path = "/" + quote(scope["path"].lstrip("/"))
        query = urlencode(list(pairs))
        target = escape(path + (f"?{query}" if query else ""), quote=True)
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={target}">'
        cookie = f"{self.cookie}={self.secret}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"set-cookie", cookie.encode()), (b"content-type", b"text/html; charset=utf-8")]
        await _answer(send, 200, page, headers)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, host: str) -> None:
        length = _header(scope, b"content-length")
        if length is not None and not (length.isdecimal() and int(length) <= MAX_BODY):
            await _answer(send, 413, f"A request may have {MAX_BODY:,} bytes.")
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # Without a length, or with a false one: as if the sender had left.
            return {"type": "http.disconnect"} if received > MAX_BODY else message

        policy = POLICY.format(host=host).encode()

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"content-security-policy", policy),
                    *_HEADERS,
                ]
            await send(message)

        await self.app(scope, bounded, hardened)

    def _host(self, scope: Scope) -> str | None:
        """The Host, where it is ours."""
        host = _header(scope, b"host")
        return host if host in self.hosts else None

    def _knows_secret(self, scope: Scope) -> bool:
        header = _header(scope, b"cookie")
        if header is None:
            return False
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and _same(morsel.value, self.secret)


_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def _same(given: str, wanted: str) -> bool:
    """Compared in a time that does not tell how much was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _header(scope: Scope, name: bytes) -> str | None:
    """The header's only value; None where it is absent or given twice."""
    values = [value for key, value in scope.get("headers", ()) if key.lower() == name]
    return values[0].decode("latin-1") if len(values) == 1 else None


async def _answer(
    send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    body = text.encode()
    given = list(headers) or [(b"content-type", b"text/plain; charset=utf-8")]
    given += [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*given, *_HEADERS]})
    await send({"type": "http.response.body", "body": body})
