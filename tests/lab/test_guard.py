"""The guard lets in who opened this run's URL, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from gateup.lab.guard import MAX_BODY, Guard

PORT, TOKEN = 8765, "a-token"
HOST = b"127.0.0.1:8765"
ORIGIN = b"http://127.0.0.1:8765"
Headers = list[tuple[bytes, bytes]]


class Inner:
    """An app that notes what reaches it, and reads the whole body."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.bodies: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["type"])
        if scope["type"] == "http":
            more = True
            while more:
                message = await receive()
                self.bodies.append(message["type"])
                more = message.get("more_body", False)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"inside"})


def ask(
    guard: Guard,
    *,
    kind: str = "http",
    method: str = "GET",
    path: str = "/gate",
    query: bytes = b"",
    headers: Headers,
    body: Iterable[bytes] = (b"",),
) -> list[dict[str, Any]]:
    """What the guard sends for one request."""
    sent: list[dict[str, Any]] = []
    parts = list(body)

    async def receive() -> dict[str, Any]:
        if kind == "websocket":
            return {"type": "websocket.connect"}
        part = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "query_string": query, "headers": headers}
    if kind == "http":
        scope["method"] = method
    asyncio.run(guard(scope, receive, send))
    return sent


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def guard(inner: Inner) -> Guard:
    return Guard(inner, port=PORT, token=TOKEN)


def cookie(guard: Guard) -> bytes:
    """The cookie a browser gets for the token."""
    (start, _) = ask(guard, query=b"token=a-token", headers=[(b"host", HOST)])
    given = dict(start["headers"])[b"set-cookie"]
    return bytes(given.split(b";")[0])


def test_the_token_becomes_a_cookie_and_leaves_the_url(guard: Guard, inner: Inner) -> None:
    start, body = ask(
        guard, path="/gate", query=b"a=1&token=a-token&b=%22%3E", headers=[(b"host", HOST)]
    )
    given = dict(start["headers"])[b"set-cookie"].decode()
    assert given.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert given.startswith("gateup-lab-8765=")
    assert TOKEN not in given  # the cookie is another secret
    assert 'content="0;url=/gate?a=1&amp;b=%22%3E"' in body["body"].decode()
    assert dict(start["headers"])[b"cache-control"] == b"no-store"
    assert inner.reached == []


def test_the_way_on_stays_on_this_server(guard: Guard) -> None:
    _, body = ask(guard, path="//evil.example/", query=b"token=a-token", headers=[(b"host", HOST)])
    assert b"url=/evil.example/" in body["body"]


def test_with_the_cookie_everything_is_there(guard: Guard, inner: Inner) -> None:
    headers = [(b"host", HOST), (b"cookie", cookie(guard))]
    start, body = ask(guard, path="/_nicegui/static/x.js", headers=headers)
    assert (start["status"], body["body"]) == (200, b"inside")
    policy = dict(start["headers"])[b"content-security-policy"].decode()
    assert "default-src 'self'" in policy
    assert "connect-src 'self' ws://127.0.0.1:8765" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ([(b"host", HOST)], b"", 403),  # nothing
        ([(b"host", HOST)], b"token=another", 403),
        ([(b"host", HOST)], "token=ä".encode(), 403),
        ([(b"host", HOST), (b"cookie", b"gateup-lab-8765=guessed")], b"", 403),
        ([(b"host", HOST), (b"cookie", b"gateup-lab-8765=a-token")], b"", 403),
        ([(b"host", HOST), (b"cookie", b"=;=;;\xff")], b"", 403),
        ([(b"host", b"evil.example:8765")], b"token=a-token", 421),  # rebound DNS
        ([(b"host", b"127.0.0.1:9999")], b"token=a-token", 421),
        ([], b"token=a-token", 421),
        ([(b"host", HOST), (b"host", HOST)], b"token=a-token", 421),
        ([(b"host", HOST), (b"origin", b"http://evil.example")], b"token=a-token", 403),
    ],
)
def test_who_is_refused(
    guard: Guard, inner: Inner, headers: Headers, query: bytes, status: int
) -> None:
    start, _ = ask(guard, headers=headers, query=query)
    assert start["status"] == status
    assert b"set-cookie" not in dict(start["headers"])
    assert inner.reached == []


def test_a_post_needs_our_own_origin(guard: Guard, inner: Inner) -> None:
    known: Headers = [(b"host", HOST), (b"cookie", cookie(guard))]
    for origin in ([], [(b"origin", b"null")], [(b"origin", b"http://localhost:8765")]):
        (start, _) = ask(guard, method="POST", headers=[*known, *origin])
        assert start["status"] == 403
    assert inner.reached == []
    (start, _) = ask(guard, method="POST", headers=[*known, (b"origin", ORIGIN)])
    assert start["status"] == 200


def test_the_token_is_taken_from_a_link_only(guard: Guard, inner: Inner) -> None:
    headers = [(b"host", HOST), (b"origin", ORIGIN)]
    (start, _) = ask(guard, method="POST", query=b"token=a-token", headers=headers)
    assert start["status"] == 403


@pytest.mark.parametrize("missing", ["cookie", "origin", "host"])
def test_the_websocket_is_guarded_too(guard: Guard, inner: Inner, missing: str) -> None:
    full = {"host": HOST, "origin": ORIGIN, "cookie": cookie(guard)}
    headers = [(k.encode(), v) for k, v in full.items() if k != missing]
    (closed,) = ask(guard, kind="websocket", path="/_nicegui_ws/socket.io/", headers=headers)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert inner.reached == []


def test_the_websocket_of_our_own_page_is_let_in(guard: Guard, inner: Inner) -> None:
    headers = [(b"host", HOST), (b"origin", ORIGIN), (b"cookie", cookie(guard))]
    assert ask(guard, kind="websocket", headers=headers) == []
    assert inner.reached == ["websocket"]
    foreign = [(b"host", HOST), (b"origin", b"http://evil.example"), headers[2]]
    (closed,) = ask(guard, kind="websocket", headers=foreign)
    assert closed["type"] == "websocket.close"


def test_uploads_are_bounded(guard: Guard, inner: Inner) -> None:
    headers = [(b"host", HOST), (b"origin", ORIGIN), (b"cookie", cookie(guard))]
    too_long = [*headers, (b"content-length", str(MAX_BODY + 1).encode())]
    (start, _) = ask(guard, method="POST", headers=too_long)
    assert start["status"] == 413
    (start, _) = ask(guard, method="POST", headers=[*headers, (b"content-length", b"-1")])
    assert start["status"] == 413
    assert inner.reached == []
    # Without a length the app sees its sender leave once the bound is passed.
    ask(guard, method="POST", headers=headers, body=[b"x" * MAX_BODY, b"y", b"z"])
    assert inner.bodies == ["http.request", "http.disconnect"]


def test_two_runs_do_not_share_a_cookie(guard: Guard, inner: Inner) -> None:
    other = Guard(inner, port=PORT, token=TOKEN)
    (start, _) = ask(other, headers=[(b"host", HOST), (b"cookie", cookie(guard))])
    assert start["status"] == 403


def test_the_browsers_own_token_is_good_once(inner: Inner) -> None:
    guard = Guard(inner, port=PORT, token=TOKEN, once="once")
    (start, _) = ask(guard, query=b"token=once", headers=[(b"host", HOST)])
    assert b"set-cookie" in dict(start["headers"])
    (start, _) = ask(guard, query=b"token=once", headers=[(b"host", HOST)])
    assert start["status"] == 403
    assert cookie(guard)  # the printed one stays good
