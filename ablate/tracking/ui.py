"""Starts MLflow's pages on a store for `ablate ui`, finds the page of each study, and ends what was started."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from html import escape
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlencode

import ablate
from ablate.base.errors import RequestError
from ablate.base.files import sqlite_file
from ablate.base.redaction import redact_url
from ablate.base.scratch import scratch_folder
from ablate.tracking.address import DATABASES, ENVIRONMENT, artifact_root, dialect, for_mlflow
from ablate.tracking.store import require_mlflow
from ablate.tracking.ui_server import DESTINATION, HOST, QUERY, TOKEN, URI
from ablate.tracking.view import VIEW, VIEW_TAG

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END_SECONDS = 5.0  # time for the server to end by itself
POLL_SECONDS = 0.3
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MOST_STUDIES = 1000
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine

NO_CODE_FROM_HERE = {"PYTHONSAFEPATH": "1"}  # Python's `-c` puts the current folder first on the search path
START = "import sys; sys.path.append(sys.argv[1]); from ablate.tracking.ui_server import main; main(int(sys.argv[2]))"


@dataclass(frozen=True, kw_only=True)
class UiCommand:
    """A command for `subprocess.run(arguments, env=environment)`.

    The store's URI, which may hold a password, and the token that the server asks for are in the environment, so that a
    list of processes does not show them.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    port: int

    @property
    def token(self) -> str:
        """What every request must carry."""
        return self.environment[TOKEN]

    @property
    def url(self) -> str:
        """The address of the pages, with the token."""
        return f"http://{HOST}:{self.port}/?{urlencode({QUERY: self.token})}"


def ui_command(uri: str, *, port: int = 5000) -> UiCommand:
    """Return the command that serves MLflow's pages for the store at `uri` on a port of this machine.

    Raises RequestError if nothing can be served: `uri` is a server already, or its SQLite file does not exist or is not
    MLflow's.
    """
    if dialect(uri) not in (*DATABASES, "file"):
        raise RequestError(f"{redact_url(uri)} is a server that has its own pages: open it in a browser")
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise RequestError(f"{file} does not exist: no study has been tracked there yet (`ablate search FILE` does)")
    require_mlflow(uri)
    arguments = (sys.executable, "-c", START, str(Path(ablate.__file__).parents[1]), str(port))
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **ENVIRONMENT}
    # What other clients had uploaded through a server lies beside the artifacts of the studies.
    beside = {} if file is None else {DESTINATION: str(artifact_root(uri, file.parent))}
    own = {URI: for_mlflow(uri), TOKEN: secrets.token_urlsafe(24), **beside, **NO_CODE_FROM_HERE}
    environment = {**quiet, **os.environ, **own}
    return UiCommand(arguments=arguments, environment=environment, port=port)


@dataclass(frozen=True, kw_only=True)
class StudyPage:
    """A study and the address of its page."""

    study: str
    url: str


def serve(
    command: UiCommand | None,
    live: AbstractContextManager[None],
    *,
    ready: Callable[[list[StudyPage]], None],
    browser: str | None = None,
) -> int:
    """Serve inside `live` and run MLflow's server, if any, until that ends or a signal arrives; return the exit code.

    `ready` is called once, when MLflow's server answers, with the page of each study. `browser` is an address to open.
    Ctrl-C is the usual end: code 0. SIGTERM, SIGINT and SIGHUP end every process of the server: none outlives this
    call. If this process is killed, the kernel ends the server.
    """
    server = None if command is None else _start(command)
    try:
        with _signals_raised(), scratch_folder("ui") as folder, live:
            if browser is not None:
                _open(browser, folder)
            if command is not None and server is not None:
                while (pages := study_pages(command)) is None:
                    if _ended(server, POLL_SECONDS):
                        return server.returncode
                ready(pages)
            while server is None or server.poll() is None:
                time.sleep(POLL_SECONDS)  # another thread may get the signal
            return server.returncode
    except _ToldError as told:
        if server is not None:
            _send(server.pid, signal.SIGTERM)  # after SIGINT the server prints a traceback
            _ended(server, END_SECONDS)
        return 0 if told.number == signal.SIGINT else 128 + told.number
    finally:
        if server is not None:
            _send(server.pid, signal.SIGKILL)
            server.wait()


def _start(command: UiCommand) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.arguments,
        env=dict(command.environment),
        start_new_session=True,
        preexec_fn=_end_with(os.getpid()),
    )


def study_pages(command: UiCommand) -> list[StudyPage] | None:
    """Return the page of each study on a command's server, in order of name, or None if no server answers."""
    query = urlencode({"max_results": MOST_STUDIES})
    request = urllib.request.Request(
        f"http://{HOST}:{command.port}/api/2.0/mlflow/experiments/search?{query}",
        headers={"Authorization": f"Bearer {command.token}"},
    )
    try:
        with DIRECT.open(request, timeout=10) as answer:
            found = json.load(answer).get("experiments", [])
    except (OSError, HTTPException, ValueError):
        return None
    own = [experiment for experiment in found if experiment["experiment_id"] != "0"]  # 0 is MLflow's `Default`
    return [
        StudyPage(study=e["name"], url=_runs_page(command.url, e)) for e in sorted(own, key=lambda e: str(e["name"]))
    ]


def _open(url: str, folder: Path) -> None:
    """Open an address in a browser by a file that leads there: everybody can list the words of a browser's command."""
    file = folder / "ablate.html"
    file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(file.as_uri())


def _runs_page(url: str, experiment: Mapping[str, Any]) -> str:
    known = {tag["key"] for tag in experiment.get("tags", [])}
    query = {"workflowType": "machine_learning"}
    if VIEW_TAG in known:
        query["viewStateShareKey"] = VIEW
    return f"{url}#/experiments/{experiment['experiment_id']}/runs?{urlencode(query)}"


def _ended(server: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        server.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _send(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_with(parent: int) -> Callable[[], None]:
    """Return a function that makes the kernel send SIGTERM to a new process once `parent` has ended."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before the request to the kernel
            os._exit(1)

    return arrange


class _ToldError(Exception):
    """A signal requested the end of this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def ending_signals() -> list[signal.Signals]:
    """Return which signals end a server: not those that were ignored at its start (nohup)."""
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Raise _ToldError for each of `ending_signals` that arrives inside the block."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise _ToldError(number)

    former = {number: signal.signal(number, handle) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
