"""The server of `ablate ui`: MLflow's pages behind a gate that asks for a token and lets no request change anything."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

URI, DESTINATION, TOKEN = "MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION", "ABLATE_UI_TOKEN"
QUERY = "token"  # in the printed address
HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "::1", "[::1]")
READS = ("GET", "HEAD")
# POST requests that only read: MLflow's searches, whose filters may be too long for an address.
SEARCHES = re.compile(
    r"/(?:ajax-)?api/[23]\.0/mlflow/(?:(?:experiments|runs|logged-models|traces|datasets|issues)/search"
    r"|experiments/search-datasets|registered-models/get-latest-versions"
    r"|traces/(?:batchGetInfos|metrics|calculate-filter-correlation))|/graphql"
)
NO_TOKEN = "Open the address that `ablate ui` has printed: it holds the token that this server asks for.\n"
NO_HOST = "The server of `ablate ui` answers only by the names 127.0.0.1 and localhost.\n"
NO_CHANGE = "The server of `ablate ui` only shows: nothing can be changed or uploaded here.\n"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def only_reads(method: str, path: str) -> bool:
    """Return whether a request of MLflow's server can change nothing."""
    return method in READS or (method == "POST" and SEARCHES.fullmatch(path) is not None)


class Gate:
    """An ASGI application that passes to `app` only requests that carry the token and change nothing.

    The token arrives once in the address, which sets a cookie, or as `Authorization: Bearer`, which MLflow's client
    sends for MLFLOW_TRACKING_TOKEN. Requests by another name than `hosts` (None: any) are refused: a page elsewhere
    could give its own name this machine's address. `same_site` is that of the cookie.
    """

    def __init__(
        self,
        app: App,
        *,
        token: str,
        port: int,
        hosts: Collection[str] | None = LOOPBACK,
        same_site: Literal["Lax", "Strict"] = "Lax",
    ) -> None:
        self._app, self._token, self._hosts, self._same_site = app, token, hosts, same_site
        self._cookie = f"ablate-ui-{port}"  # a browser sends a cookie to every port of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif not self._is_known_host(scope):
            await _answer(send, 403, NO_HOST, {})
        elif self._is_token(dict(query := parse_qsl(scope["query_string"].decode("latin-1"))).get(QUERY)):
            rest = urlencode([(name, value) for name, value in query if name != QUERY])
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite={self._same_site}"
            known = {"set-cookie": cookie, "referrer-policy": "no-referrer"}
            if self._same_site == "Strict":  # a redirection from another site would not carry the cookie
                page = f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(f"?{rest}")}">'
                await _answer(send, 200, page, known | {"content-type": "text/html; charset=utf-8"})
                return
            place = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
            await _answer(send, 303, "", known | {"location": place})
        elif not any(map(self._is_token, self._sent(scope))):
            await _answer(send, 401, NO_TOKEN, {"www-authenticate": "Bearer"})
        elif not only_reads(scope["method"], scope["path"]):
            await _answer(send, 403, NO_CHANGE, {})
        else:
            await self._app(scope, receive, send)

    def _is_known_host(self, scope: Scope) -> bool:
        names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        return self._hosts is None or (len(names) == 1 and re.sub(r":\d*\Z", "", names[0]).lower() in self._hosts)

    def _is_token(self, text: str | None) -> bool:
        return text is not None and compare_digest(text.encode(), self._token.encode())

    def _sent(self, scope: Scope) -> list[str]:
        """Return the tokens in a request's headers."""
        found: list[str] = []
        for name, value in scope["headers"]:
            text = value.decode("latin-1")
            if name == b"authorization" and text.startswith("Bearer "):
                found.append(text.removeprefix("Bearer "))
            if name == b"cookie":
                try:
                    found += [morsel.value for key, morsel in SimpleCookie(text).items() if key == self._cookie]
                except CookieError:
                    continue
        return found


async def _answer(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    known = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"} | headers
    encoded = [(name.encode(), value.encode()) for name, value in known.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": text.encode()})


def main(port: int) -> None:
    """Serve the store that the environment names until a signal ends the process."""
    import uvicorn
    from mlflow.server import constants
    from mlflow.server.handlers import initialize_backend_stores

    uri, token = os.environ[URI], os.environ.pop(TOKEN)
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: uri,
        constants.REGISTRY_STORE_URI_ENV_VAR: uri,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: os.environ.get(DESTINATION, "./mlartifacts"),
    }
    initialize_backend_stores(uri, uri, "mlflow-artifacts:/")
    with warnings.catch_warnings():  # MLflow imports a part of starlette that is deprecated
        warnings.simplefilter("ignore")
        from mlflow.server.fastapi_app import app  # reads the environment

    uvicorn.run(Gate(app, token=token, port=port), host=HOST, port=port, log_level="warning")
