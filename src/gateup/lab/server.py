"""Starts the lab: one socket on 127.0.0.1, one token, one run."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import webbrowser
from importlib import import_module
from typing import Any

import uvicorn
from fastapi import FastAPI
from nicegui import app as framework
from nicegui import ui
from starlette.requests import Request as HttpRequest

from gateup.errors import UsageError
from gateup.lab.frame import Frame, Request
from gateup.lab.guard import TOKEN, Guard
from gateup.lab.models import Models
from gateup.lab.registry import PAGES, Page, available
from gateup.lab.words import preferred

HOST = "127.0.0.1"
PORT = 8765
RESPONSE_TIMEOUT = 30.0  # seconds to build a page; the framework's 3 are short on a busy machine
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" '
    'rx="6" fill="#d9600a"/><path d="M5 23h9c5 0 4-14 13-14" fill="none" stroke="#fff" '
    'stroke-width="3.5" stroke-linecap="round"/></svg>'
)


def serve(model: str | None, *, port: int | None, browser: bool) -> None:
    """Run the lab until Ctrl-C.

    port  None: 8765, or any free one where that is taken; 0: any free one

    Raises GateupError for a model that cannot be opened or a port that cannot be had.
    """
    models = Models(model)
    listener = listen(port)
    number = listener.getsockname()[1]
    token, once = secrets.token_urlsafe(24), secrets.token_urlsafe(24) if browser else None
    url = f"http://{HOST}:{number}/?{TOKEN}="
    print(f"gateup lab: {url}{token}\nCtrl-C ends it.", flush=True)
    if once is not None:
        # In a thread: a text browser would hold us up. The socket listens already.
        threading.Thread(target=webbrowser.open, args=(url + once,), daemon=True).start()
    server = make_server(Guard(make_app(models), port=number, token=token, once=once))
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn shuts down and raises it again
        pass
    finally:
        listener.close()


def listen(port: int | None) -> socket.socket:
    """A socket that listens on 127.0.0.1. Raises UsageError where the port cannot be had."""
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"--port is {port}", expected="0 to 65535; 0 takes any free one")
    for number in (PORT, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if port is None and number:
                continue
            raise UsageError(
                f"port {number} cannot be had: {error.strerror}",
                expected="a port that no other program uses",
                remedy="gateup lab --port 0 takes any free one",
            ) from None
        return listener
    raise AssertionError("port 0 is always to be had, or raised above")


def make_app(models: Models) -> FastAPI:
    """The web application, unguarded; never serve it without the Guard."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    _add(None, "/", models)
    for page in PAGES:
        if page.available:
            _add(page, page.path, models)
    framework.config.quasar_config["brand"] = {"primary": "#d9600a"}
    ui.run_with(
        app,
        title="gateup lab",
        favicon=FAVICON,
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        show_welcome_message=False,
        storage_secret=secrets.token_urlsafe(32),
        session_middleware_kwargs={"same_site": "strict"},
    )
    return app


def _add(page: Page | None, path: str, models: Models) -> None:
    name = page.module if page else "gateup.lab.pages.home"

    @ui.page(path, response_timeout=RESPONSE_TIMEOUT)
    async def show(request: HttpRequest) -> None:
        module: Any = import_module(name)
        asked = Request(
            page,
            dict(request.query_params),
            preferred(request.headers.get("accept-language", "")),
        )
        frame = Frame(asked, models, module.params(models))
        with frame.open():
            module.build(frame)
            await frame.first()
            frame.close()


def make_server(app: Guard) -> uvicorn.Server:
    """uvicorn around the guarded app."""
    logging.getLogger("nicegui").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,  # open browser tabs hold their websocket
        ws_max_size=4 << 20,
    )
    return uvicorn.Server(config)


__all__ = ["available", "listen", "make_app", "make_server", "serve"]
