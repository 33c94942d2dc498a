"""The web application of `ablate ui`: read-only addresses for pages, their files, and the JSON of the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from mimetypes import guess_type
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from ablate.base.errors import AblateError, RequestError
from ablate.base.plain_text import finite
from ablate.results.rendering.numbers import spell_seconds
from ablate.results.report.frame import LIVE, Page, asset, bundle
from ablate.studies.homes import lasting
from ablate.studies.live.pages import list_parts, live_line, now_part, shell, trial_parts, written_page
from ablate.studies.live.trial_pages import beside_parts, table_parts
from ablate.studies.live.trials import Trials
from ablate.studies.live.views import Made, Views, state_line, version_of
from ablate.studies.status import overview, results_as_values, status_of
from ablate.studies.stored import known_names, read_study
from ablate.studies.trial import trial_details
from ablate.study import parse_study

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
SCRIPTS: dict[str, Callable[[], str]] = {
    "vega.js": bundle,
    "figures.js": lambda: asset("figures.js"),
    "live.js": lambda: asset("live.js"),
}


def make_app(views: Views, *, mlflow: str | None = None, root_path: str = "") -> Starlette:
    """Return the application; trials link to runs of MLflow's pages at `mlflow`, by default at the study's server.

    Every link is relative, so that a reverse proxy may serve the pages at any path; `root_path` is needed only if the
    proxy leaves it in the requests.
    """
    pages = _Pages(views, mlflow)
    study = "/studies/{study}"
    trial = study + "/trials/{dataset}/{number:int}"
    routes = [
        Route("/", pages.studies),
        Route("/state", pages.studies_state),
        Route("/assets/{name}", pages.script),
        Route("/api/studies", pages.studies_json),
        Route("/api/studies/{study}", pages.study_json),
        Route("/api/studies/{study}/trials/{number:int}", pages.trial_json),
        Route(f"{study}/", pages.study),
        Route(f"{study}/state", pages.study_state),
        Route(f"{study}/now", pages.now),
        Route(f"{study}/trials/", pages.trials),
        Route(f"{study}/trials/beside", pages.beside),
        Route(f"{study}/trials/state", pages.trial_state),
        Route(trial, pages.trial),
        Route(trial + "/state", pages.trial_state),
        Route(study + "/{file}", pages.file),
    ]
    mounted = [Mount(root_path, routes=routes)] if root_path.strip("/") else []
    faults = {AblateError: _explain, HTTPException: _explain}
    zipped = [Middleware(GZipMiddleware, compresslevel=4)]
    app = Starlette(routes=[*mounted, *routes], exception_handlers=faults, middleware=zipped)
    app.router.redirect_slashes = False  # it would name this server, not the proxy before it
    return app


class _Pages:
    """The answers to all addresses."""

    def __init__(self, views: Views, mlflow: str | None) -> None:
        self._views, self._mlflow = views, mlflow

    def studies(self, request: Request) -> Response:
        parts = list_parts(self._views)
        live = live_line(parts["lines"], version=_hash(repr(parts).encode()), depth=0)
        return _answer(request, shell("studies.html.j2", title="Studies", live=live, **parts))

    def studies_state(self, request: Request) -> Response:
        parts = list_parts(self._views)
        return _json(request, {"lines": parts["lines"], "version": _hash(repr(parts).encode())})

    def study(self, request: Request) -> Response:
        name, version, found, lines = self._now(request)
        made = self._views.page(name, version, is_awaited=found is not None)
        live = live_line([*lines, _age(made, version)], version=made.version if made else "", depth=2,
                         now=found.version if found else "")  # fmt: skip
        now = now_part(found)
        if made is not None:
            page: Page = made.value
            html = page.html.replace("</header>", f"</header>\n{now}", 1)
            return _answer(request, html.replace(LIVE, live, 1))
        written = written_page(self._views.locations.home(name))
        return _answer(request, shell("waiting.html.j2", title=name, live=live, now=now, written=written))

    def study_state(self, request: Request) -> Response:
        name, version, found, lines = self._now(request, is_awaited=False)
        made = self._views.page(name, version, is_awaited=False)
        told = {"version": made.version if made else "", "now": found.version if found else ""}
        return _json(request, {"lines": [*lines, _age(made, version)], **told})

    def now(self, request: Request) -> Response:
        return _answer(request, now_part(self._now(request)[2]))

    def trials(self, request: Request) -> Response:
        return self._of_trials(request, "trials.html.j2", lambda found: table_parts(found, request.query_params))

    def beside(self, request: Request) -> Response:
        chosen = request.query_params.getlist("trial")
        return self._of_trials(request, "beside.html.j2", lambda found: beside_parts(found, chosen))

    def _of_trials(self, request: Request, template: str, parts: Callable[[Trials], dict[str, Any]]) -> Response:
        name, _, made, lines = self._now(request)
        live = live_line(lines, version=made.version if made else "", depth=3)
        if made is None:
            text = "The trials are being read from the ledger."
            return _answer(request, shell("shell.html.j2", title=name, live=live, text=text))
        values = parts(made.value)
        answer = _answer(request, shell(template, title=f"Trials of {name}", live=live, study=name, **values))
        if values.get("fault"):
            answer.status_code = 400
        return answer

    def trial(self, request: Request) -> Response:
        name, number, dataset = self._trial_of(request)
        glance = self._views.glance(name)
        found = trial_details(name, self._views.locations, number=number, dataset=dataset)
        version = version_of(glance.study, glance.last_event)
        live = live_line([state_line(glance)], version=version, depth=4, state=f"{number}/state")
        study = parse_study(glance.study.file_text, name, known_good=True)
        parts = trial_parts(study, found, self._views.locations, link=self._run(found, glance.study.tracking))
        return _answer(request, shell("trial.html.j2", title=found["trial"], live=live, **parts))

    def trial_state(self, request: Request) -> Response:
        glance = self._views.glance(self._name(request))
        version = version_of(glance.study, glance.last_event)
        return _json(request, {"lines": [state_line(glance)], "version": version})

    def file(self, request: Request) -> Response:
        """Return a file beside a study's page: a figure, or a table."""
        name, version, *_ = self._now(request, is_awaited=False)
        made = self._views.page(name, version, is_awaited=False)
        asked = request.path_params["file"]
        make = dict(made.value.files()).get(asked) if made else None
        if make is None:
            raise HTTPException(404, f"the page of study {name!r} has no such file")
        return _answer(request, make(), guess_type(asked)[0] or "text/plain")

    def script(self, request: Request) -> Response:
        make = SCRIPTS.get(request.path_params["name"])
        if make is None:
            raise HTTPException(404, "there is no such script")
        return _answer(request, make(), "text/javascript")

    def studies_json(self, request: Request) -> Response:
        return _json(request, overview(self._views.locations))

    def study_json(self, request: Request) -> Response:
        found = read_study(self._name(request), self._views.locations)
        return _json(request, status_of(found, self._views.locations) | results_as_values(found))

    def trial_json(self, request: Request) -> Response:
        name, number, dataset = self._trial_of(request)
        return _json(request, trial_details(name, self._views.locations, number=number, dataset=dataset))

    def _now(self, request: Request, *, is_awaited: bool = True) -> tuple[str, str, Made | None, list[str]]:
        """Return a request's study, the version of its ledger, its trials as last read, and the line on its state."""
        name = self._name(request)
        glance = self._views.glance(name)
        version = version_of(glance.study, glance.last_event)
        return name, version, self._views.trials(name, version, is_awaited=is_awaited), [state_line(glance)]

    def _name(self, request: Request) -> str:
        """Return the study of a request: a name that the ledgers list, before anything is looked for by it."""
        name: str = request.path_params["study"]
        if name not in known_names(self._views.locations):
            raise HTTPException(404, f"there is no study {name!r} here")
        return name

    def _trial_of(self, request: Request) -> tuple[str, int, str | None]:
        dataset = request.path_params.get("dataset") or request.query_params.get("dataset")
        return self._name(request), request.path_params["number"], dataset

    def _run(self, found: Mapping[str, Any], tracking: str | None) -> str | None:
        """Return the address of a trial's run in MLflow's pages, None if it has none or they are not known."""
        place = self._mlflow or lasting(self._views.locations.tracking_uri or tracking or "")
        if found["mlflow_run"] is None or not place.startswith(("http://", "https://")):
            return None
        return f"{place if '?' in place else place.rstrip('/') + '/'}#/runs/{found['mlflow_run']}"


def _age(made: Made | None, version: str) -> str:
    """Return how old the results of a page are; empty if they are the newest, or not there."""
    if made is None or made.version.startswith(version):
        return ""
    return f"The results below are {spell_seconds(time.time() - made.at)} old; newer ones are being computed."


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:20]


def _json(request: Request, value: Any) -> Response:
    """Return a value as the commands print it with --json."""
    return _answer(request, json.dumps(finite(value), indent=1), "application/json")


def _answer(request: Request, content: str | bytes, kind: str = "text/html") -> Response:
    """Return content, or 304 without it if the browser has the same already."""
    body = content.encode() if isinstance(content, str) else content
    headers = HEADERS | {"etag": f'W/"{_hash(body)}"'}
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _explain(request: Request, error: Exception) -> Response:
    """Answer a fault in one line: 404 for what does not exist, 503 for a ledger that cannot be read."""
    status, text = (404 if isinstance(error, RequestError) else 503), str(error)
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        status, text, headers = error.status_code, error.detail, error.headers or {}
    return Response(f"{text}\n", status_code=status, media_type="text/plain", headers=HEADERS | dict(headers))
