"""A real `mlflow server`, stopped, killed and started again on the same port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ablate.tracking.address import ENVIRONMENT
from support.ports import free_port

QUICK = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # nine processes that import MLflow for nothing
START_SECONDS = 120.0  # it imports for 20 s on two busy cores


@dataclass
class MlflowServer:
    """One server on `backend`; `artifacts` is the folder or URL that it keeps files in."""

    backend: str
    artifacts: str
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and return when it answers; raise RuntimeError with its log where it does not."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it and return at once."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        places = ["--backend-store-uri", self.backend, "--artifacts-destination", self.artifacts, "--workers", "1"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *places],
                env={**os.environ, **ENVIRONMENT, **QUICK, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when it answers."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the MLflow server does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def answers(self) -> bool:
        """Return whether it answers now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """End it and its workers at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def mlflow_server(
    folder: Path, *, backend: str | None = None, artifacts: str | None = None, **environment: str
) -> Iterator[MlflowServer]:
    """Yield a server that has not been started, on SQLite and files in `folder` unless told otherwise."""
    server = MlflowServer(
        backend=backend or f"sqlite:///{folder / 'server.db'}",
        artifacts=artifacts or str(folder / "artifacts"),
        log=folder / "server.log",
        environment=environment,
    )
    try:
        yield server
    finally:
        server.kill()
