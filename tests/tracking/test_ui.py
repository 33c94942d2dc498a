"""`ablate ui` with real processes: what it prints, and that nothing of MLflow's server outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

import pytest

from ablate.base.errors import RequestError
from ablate.studies.live import listening, mlflow_beside
from ablate.studies.locations import Locations
from ablate.study import Study
from ablate.tracking import ui as ui_module
from ablate.tracking.address import default_uri
from ablate.tracking.contents import Point
from ablate.tracking.store import open_store
from ablate.tracking.ui import UiCommand, study_pages
from ablate.tracking.ui_server import only_reads
from ablate.tracking.view import experiment_tags
from support.browser import CHROMIUM
from support.ports import free_port
from support.processes import marked

pytest.importorskip("mlflow")
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are read from /proc")

SECONDS = 200.0
MARK = "ABLATE_TEST_UI"
SLOW_SIGNALS = [pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that shows the studies `shop` and `older`, the second as earlier versions wrote it."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("shop", "older"):
        uri = default_uri(folder)
        store = open_store(uri, experiment=name, study_id="x", named=(), folder=folder)
        if name == "shop":
            study = {"study": name, "datasets": {"digits": {}}, "model": {"width": {"choices": [8, 16]}}}
            store.describe(experiment_tags(Study.model_validate(study)))
            parent = store.create(name="the parent", start=1, tags={"ablate.kind": "study"})
            nested = {"ablate.kind": "trial", "mlflow.parentRunId": parent.run_id}
            trial = store.create(name="the trial", start=1, tags=nested)
            points = [Point(key="val_accuracy", value=0.625, timestamp=1, step=1)]
            store.put(trial, points=points, parameters={"model.width": "24"})
    return folder


class Ui:
    """A running `ablate ui`, and every process that it started."""

    def __init__(self, runs: Path) -> None:
        pages = free_port()
        self.port = pages + 1  # of MLflow
        self.mark = uuid4().hex
        self.output = runs / f"ui-{self.port}.txt"
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}  # MLflow's client sets it
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ablate", "ui", "--runs-dir", str(runs), "--port", str(pages)],
                env=environment | {MARK: self.mark, "COLUMNS": "80"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        """Return what it printed so far."""
        return self.output.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Return the processes that carry this test's mark and have not ended."""
        return [*marked(f"{MARK}={self.mark}")]

    def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; fail with the output where it does not."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.processes(), self.said())
            time.sleep(0.1)


@pytest.fixture
def ui(runs: Path) -> Iterator[Ui]:
    started = Ui(runs)
    yield started
    for pid in started.processes():
        os.kill(pid, signal.SIGKILL)
    started.process.wait()


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, *SLOW_SIGNALS], ids=["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_nothing_of_the_server_outlives_the_command(number: signal.Signals, ui: Ui) -> None:
    ui.until(lambda: "#/experiments/" in ui.said())
    assert len(ui.processes()) > 1
    os.kill(ui.process.pid, number)
    code = ui.process.wait(SECONDS)
    assert code == {signal.SIGKILL: -number, signal.SIGINT: 0}.get(number, 128 + number)
    assert "Traceback" not in ui.said()
    if number != signal.SIGKILL:
        assert ui.processes() == []
    ui.until(lambda: ui.processes() == [])


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_the_page_of_each_study_is_printed(ui: Ui) -> None:
    ui.until(lambda: "\nshop: " in ui.said())
    page = rf"http://127\.0\.0\.1:{ui.port}/\?token=[\w-]{{32}}#/experiments/\d+/runs\?workflowType=machine_learning"
    assert re.search(rf"^older: {page}$", ui.said(), re.MULTILINE)
    assert re.search(rf"^shop: {page}&viewStateShareKey=ablate$", ui.said(), re.MULTILINE)


def test_a_port_that_is_taken_is_refused_and_an_echo_on_it_is_no_server(runs: Path) -> None:
    with listening("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(RequestError, match=r":\d+: Address already in use"):
            mlflow_beside(Locations(runs_dir=runs), "auto", port)

        def echo() -> None:
            with other.accept()[0] as line:
                line.sendall(line.recv(1000))

        (thread := threading.Thread(target=echo)).start()
        command = UiCommand(arguments=(), environment={"ABLATE_UI_TOKEN": "t"}, port=port)
        assert study_pages(command) is None
        thread.join()


class Client:
    """Requests to a running `ablate ui`; redirections are not followed."""

    def __init__(self, ui: Ui, **headers: str) -> None:
        self.place, self.headers = ("127.0.0.1", ui.port), headers

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Message, bytes]:
        line = HTTPConnection(*self.place, timeout=60)
        kind = {"Content-Type": "application/json"} if body is not None else {}
        line.request(method, path, body, kind | self.headers | headers)
        answer = line.getresponse()
        found = answer.status, answer.headers, answer.read()
        line.close()
        return found


API = "/api/2.0/mlflow"
SHOWN = [
    ("GET", "/", None),
    ("GET", "/health", None),
    ("GET", f"{API}/experiments/search?max_results=5", None),
    ("POST", f"{API}/experiments/search", '{"max_results": 5}'),
    ("POST", f"{API}/runs/search", '{"experiment_ids": ["1"]}'),
    ("POST", "/ajax-api/2.0/mlflow/runs/search", '{"experiment_ids": ["1"]}'),
    (
        "POST",
        "/graphql",
        '{"query": "{ mlflowGetExperiment(input: {experimentId: \\"1\\"}) { experiment { name } } }"}',
    ),
]
CHANGES = [
    ("PUT", "/api/2.0/mlflow-artifacts/artifacts/shop/model/code.py", "raise SystemExit"),
    ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/shop", None),
    ("POST", "/api/2.0/mlflow-artifacts/mpu/create/runs/search", "{}"),
    ("POST", f"{API}/experiments/delete", '{"experiment_id": "1"}'),
    ("POST", f"{API}/experiments/delete/../search", '{"experiment_id": "1"}'),
    ("POST", f"{API}//experiments/delete", '{"experiment_id": "1"}'),
    ("POST", f"{API}/runs/set-tag", "{}"),
    ("PATCH", f"{API}/logged-models/m-1", "{}"),
    ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=x&path=search", "x"),
    ("POST", "/ajax-api/3.0/mlflow/assistant/message", "{}"),
    ("SEARCH", f"{API}/runs/search", None),
]


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_the_server_asks_for_the_token_and_changes_nothing(ui: Ui, runs: Path) -> None:
    ui.until(lambda: "\nshop: " in ui.said())
    token = ui.said().partition("MLflow: ")[2].partition("?token=")[2].split()[0]
    before = {str(path): path.stat().st_mtime_ns for path in (runs / "mlartifacts").rglob("*")}
    wrong = (Client(ui), Client(ui, Authorization="Bearer x"), Client(ui, Cookie=f"ablate-ui-{ui.port}={token[:-1]}"))
    for method, path, body in SHOWN + CHANGES:
        for client in wrong:
            status, headers, said = client.ask(method, path, body)
            assert (status, headers["Set-Cookie"]) == (401, None), (method, path)
            assert b"shop" not in said
    assert Client(ui).ask("GET", "/?token=" + token[:-1])[0] == 401
    assert Client(ui).ask("GET", "/?token=" + token + "%C3%A9")[0] == 401

    status, headers, _ = Client(ui).ask("GET", f"//evil.example/a?token={token}&b=c%20d")
    assert (status, headers["Location"]) == (303, "/evil.example/a?b=c+d")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    known = Client(ui, Cookie=f"a=b; {cookie.partition(';')[0]}"), Client(ui, Authorization=f"Bearer {token}")
    for client in known:
        assert {client.ask(*request)[0] for request in SHOWN} == {200}
        assert {client.ask(*request)[0] for request in CHANGES} <= {400, 403}
        assert [client.ask(*request)[0] for request in CHANGES].count(403) >= len(CHANGES) - 1
        assert b"shop" in client.ask(*SHOWN[2])[2]
    assert {str(path): path.stat().st_mtime_ns for path in (runs / "mlartifacts").rglob("*")} == before
    assert token not in " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in ui.processes())


def test_no_address_of_mlflow_that_changes_something_is_let_through() -> None:
    """All addresses that MLflow serves, with names chosen so that they end like a search."""
    from mlflow.server import app

    passed = set()
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<[^>]*>", "search", str(rule))
        passed |= {
            path.rpartition("/")[2] for method in rule.methods or () if only_reads(method, path) and method == "POST"
        }
        assert not {m for m in rule.methods or () if only_reads(m, path)} - {"GET", "HEAD", "POST"}
    assert passed == {
        "search", "search-datasets", "get-latest-versions", "batchGetInfos", "metrics",
        "calculate-filter-correlation", "graphql",
    }  # fmt: skip


def test_mlflows_graphql_changes_nothing() -> None:
    from mlflow.server.graphql.graphql_schema_extensions import schema

    assert set(schema.graphql_schema.mutation_type.fields) == {
        "mlflowSearchDatasets",
        "mlflowSearchRuns",
        "testMutation",
    }


def test_a_browser_is_led_to_the_page_without_a_token_in_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(ui_module.webbrowser, "open", opened.append)
    ui_module._open("http://127.0.0.1:1/?token=secret#/a&b", tmp_path)
    assert "secret" not in opened[0]
    assert 'url=http://127.0.0.1:1/?token=secret#/a&amp;b"' in Path(opened[0].removeprefix("file://")).read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.timeout(2 * SECONDS)
def test_the_page_of_a_study_shows_its_trials_with_their_results_and_settings(ui: Ui, tmp_path: Path) -> None:
    ui.until(lambda: "\nshop: " in ui.said())
    page = ui.said().partition("\nshop: ")[2].partition("\n")[0]
    quiet = ["--disable-background-networking", "--disable-sync", "--disable-component-update", "--no-first-run"]
    alone = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1900,900"]
    done = subprocess.run(
        [str(CHROMIUM), *alone, *quiet, "--virtual-time-budget=30000", "--dump-dom", page],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", done.stdout, flags=re.DOTALL)
    for shown in ("the trial", "val_accuracy", "0.625", "model.width", "24"):
        assert shown in text, text
    assert "the parent" not in text, "trials are not folded into the run of their data set"
