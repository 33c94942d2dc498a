"""`ablate ui` with real processes: what it prints, and that nothing of MLflow's server outlives it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ablate.study import Study
from ablate.tracking.address import artifact_root, default_uri
from ablate.tracking.contents import Point
from ablate.tracking.store import open_store
from ablate.tracking.view import experiment_tags
from support.ports import free_port

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
        store = open_store(uri, experiment=name, artifact_root=artifact_root(uri, folder))
        if name == "shop":
            study = {"study": name, "datasets": {"digits": {}}, "model": {"width": {"choices": [8, 16]}}}
            store.describe(experiment_tags(Study.model_validate(study)))
            parent = store.create(name="the parent", start=1, tags={"ablate.kind": "study"})
            nested = {"ablate.kind": "trial", "mlflow.parentRunId": parent.run_id}
            trial = store.create(name="the trial", start=1, tags=nested)
            store.log(trial.run_id, points=[Point(key="val_accuracy", value=0.625, timestamp=1, step=1)])
            store.log(trial.run_id, parameters={"model.width": "24"})
    return folder


class Ui:
    """A running `ablate ui`, and every process that it started."""

    def __init__(self, runs: Path) -> None:
        self.port = free_port()
        self.mark = uuid4().hex
        self.output = runs / f"ui-{self.port}.txt"
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}  # MLflow's client sets it
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ablate", "ui", "--runs-dir", str(runs), "--port", str(self.port)],
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
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
            except OSError:
                continue
        return found

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
    ui.until(lambda: "/#/experiments/" in ui.said())
    assert len(ui.processes()) > 2
    os.kill(ui.process.pid, number)
    code = ui.process.wait(SECONDS)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in ui.said()
    if number != signal.SIGKILL:
        assert ui.processes() == []
    ui.until(lambda: ui.processes() == [])


@pytest.mark.services
@pytest.mark.timeout(2 * SECONDS)
def test_the_page_of_each_study_is_printed(ui: Ui) -> None:
    ui.until(lambda: "\nshop: " in ui.said())
    page = rf"http://127\.0\.0\.1:{ui.port}/#/experiments/\d+/runs\?workflowType=machine_learning"
    assert re.search(rf"^older: {page}$", ui.said(), re.MULTILINE)
    assert re.search(rf"^shop: {page}&viewStateShareKey=ablate$", ui.said(), re.MULTILINE)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
