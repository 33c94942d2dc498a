"""Starts the pages of `ablate ui` on an address, behind a token, and finds MLflow's pages to link."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import uvicorn
from starlette.types import ASGIApp

from ablate.base.errors import RequestError
from ablate.base.files import sqlite_file
from ablate.base.redaction import error_text
from ablate.studies.homes import lasting
from ablate.studies.live.app import make_app
from ablate.studies.live.views import Views
from ablate.studies.locations import Locations
from ablate.tracking.address import default_uri
from ablate.tracking.ui import UiCommand, ui_command
from ablate.tracking.ui_server import HOST, LOOPBACK, TOKEN, Gate

SHORTEST_TOKEN = 16
END_SECONDS = 3  # for requests in progress when the server ends


def read_token(host: str, file: Path | None) -> tuple[str, bool]:
    """Return the token that every request must carry, and whether it was made here, to be printed.

    It is read from `file` or from ABLATE_UI_TOKEN. Raises RequestError if there is none and `host` is not this
    machine's own, and for a short one.
    """
    place = str(file) if file else TOKEN
    try:
        given = file.read_text(encoding="utf-8").strip() if file else os.environ.get(TOKEN, "")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--token-file {file}: cannot be read ({error_text(error, file)})") from error
    if not given and not file:
        if host not in LOOPBACK:
            raise RequestError(
                f"--host {host}: other machines are answered only if they know a token. Set {TOKEN}, or name a file"
                " that holds it with --token-file"
            )
        return secrets.token_urlsafe(24), True
    if len(given) < SHORTEST_TOKEN or not (given.isascii() and given.isprintable()) or set(given) & set(' ";,\\'):
        raise RequestError(
            f"{place}: the token must have at least {SHORTEST_TOKEN} characters, without spaces, quotes, commas,"
            " semicolons and backslashes"
        )
    return given, False


def mlflow_beside(locations: Locations, choice: str, port: int) -> tuple[UiCommand | None, str | None]:
    """Return the command that serves MLflow's pages on `port`, None for none, and their address if it is known.

    `choice` is auto (if there is a store whose server is not running), none, or the address of running pages. Raises
    RequestError for another one, and if another program listens on `port`.
    """
    if choice.startswith(("http://", "https://")):
        return None, lasting(choice)
    if choice not in ("auto", "none"):
        raise RequestError(f"--mlflow {choice}: must be auto, none, or an address that begins with http:// or https://")
    uri = locations.tracking_uri or default_uri(locations.root)
    file = sqlite_file(uri)
    if choice == "none" or uri.startswith(("http://", "https://")) or (file is not None and not file.is_file()):
        return None, None
    command = ui_command(uri, port=port)
    with listening(HOST, port):
        return command, command.url


@contextmanager
def live_server(
    views: Views, listener: socket.socket, *, token: str, mlflow: str | None = None, root_path: str = ""
) -> Iterator[None]:
    """Serve the pages on a listening socket inside the block (`make_app`)."""
    host, port = listener.getsockname()[:2]
    pages: ASGIApp = make_app(views, mlflow=mlflow, root_path=root_path)
    gate = Gate(pages, token=token, port=port, hosts=LOOPBACK if host in LOOPBACK else None, same_site="Strict")
    server = uvicorn.Server(
        uvicorn.Config(gate, log_level="warning", access_log=False, server_header=False, lifespan="off",
                       timeout_graceful_shutdown=END_SECONDS)
    )  # fmt: skip
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * END_SECONDS)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open a listening socket; raise RequestError if the address is not this machine's or the port is taken."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        opened = socket.create_server(place[:2], family=family)
    except OSError as error:
        reason = error_text(error, host).partition(" (while")[0]
        raise RequestError(f"{host}:{port}: {reason}. Choose another --host or --port.") from error
    with closing(opened):
        yield opened
