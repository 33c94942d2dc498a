"""A Ray cluster of separate processes on this machine: nodes that can be frozen, thawed and killed whole."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.ports import free_port

STORE_BYTES = 80 * 2**20  # Ray's least object store
START_SECONDS = 60.0
STARTED = "Ray runtime started."
WORKER, AGENTS = "ray::", ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
# Ray's own take 65 s to notice a frozen node (10 s + 3 s, five times over).
QUICK_DETECTION = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    state: str
    title: str


def processes() -> dict[int, Process]:
    """Return every process of this machine that is not a zombie."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            found[int(entry.name)] = Process(pid=int(entry.name), parent=int(fields[1]), state=fields[0], title=title)
    return found


def family(pid: int) -> list[Process]:
    """Return a process and all that descend from it, parents first."""
    table = processes()
    found = [table[pid]] if pid in table else []
    for process in found:
        found += [child for child in table.values() if child.parent == process.pid]
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to every process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@dataclass
class Node:
    """What one `ray start --block` began: a raylet, its agents and its workers (on the head the GCS as well)."""

    starter: subprocess.Popen[bytes]
    log: Path
    seen: set[int] = field(default_factory=set)

    def family(self) -> list[Process]:
        """Return its processes, raylet before workers."""
        found = family(self.starter.pid)
        self.seen |= {process.pid for process in found}
        return found

    def workers(self) -> list[int]:
        """Return its processes that hold a trial or wait for one."""
        named = [process for process in self.family() if process.title.startswith(WORKER)]
        return [process.pid for process in named if not process.title.startswith(AGENTS)]

    def freeze(self) -> None:
        """Stop every process of the node as they stand (SIGSTOP); what is begun meanwhile is stopped as well."""
        while running := [process.pid for process in self.family() if process.state != "T"]:
            send(running, signal.SIGSTOP)

    def thaw_workers(self) -> None:
        """Let the workers go on, ahead of a raylet that is told at once that its node is dead, and ends."""
        send(self.workers(), signal.SIGCONT)

    def thaw(self) -> None:
        """Let all of them go on."""
        send([process.pid for process in self.family()], signal.SIGCONT)

    def kill(self) -> None:
        """End every process of the node at once (SIGKILL)."""
        while running := [process.pid for process in self.family()]:
            send(running, signal.SIGKILL)
            self.starter.poll()
        self.starter.wait()
        send([pid for pid in self.seen if pid in processes()], signal.SIGKILL)


@dataclass
class Cluster:
    """A head without CPUs and the nodes that joined it."""

    folder: Path
    address: str = ""
    head: Node | None = None
    nodes: list[Node] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def start(self, *cpus: int, head_cpus: int = 0) -> None:
        """Start a head and one node for each number of CPUs, and wait until all have joined."""
        self.add_head(cpus=head_cpus)
        for each in cpus:
            self.add_node(cpus=each)
        self.wait()

    def add_head(self, *, cpus: int = 0, host: str = "127.0.0.1") -> Node:
        """Start the GCS and a raylet on a free port."""
        port = free_port()
        self.address = f"{host}:{port}"
        place = ["--port", str(port), "--include-dashboard", "false"]
        self.head = self._begin(["--head", *place], cpus=cpus, host=host)
        self.wait()
        return self.head

    def add_node(self, *, cpus: int, host: str = "127.0.0.1", within: Sequence[str] = ()) -> Node:
        """Begin a raylet that joins the head, by the command `within` (such as `ip netns exec NAME`)."""
        ports = ["--dashboard-agent-listen-port", str(free_port())]
        self.nodes.append(self._begin(["--address", self.address, *ports], cpus=cpus, host=host, within=within))
        return self.nodes[-1]

    def wait(self) -> None:
        """Return when everything that was begun has joined; raise RuntimeError with its output where it has not."""
        deadline = time.monotonic() + START_SECONDS
        for node in self.all:
            while STARTED not in (said := node.log.read_text(errors="replace")):
                if node.starter.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"a node does not start: {said}")
                time.sleep(0.05)

    @property
    def all(self) -> list[Node]:
        """Return every node, the head last."""
        return [*self.nodes, *([self.head] if self.head else [])]

    def kill(self) -> None:
        """End every process of the cluster at once."""
        for node in self.all:
            node.kill()
        self.nodes, self.head = [], None

    def _begin(self, arguments: Sequence[str], *, cpus: int, host: str, within: Sequence[str] = ()) -> Node:
        folder = self.folder / f"n{next(self._numbers)}"
        folder.mkdir()
        command = [*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments]
        own = ["--temp-dir", str(folder), "--node-ip-address", host, "--num-cpus", str(cpus), "--num-gpus", "0"]
        shared = ["--object-store-memory", str(STORE_BYTES), "--disable-usage-stats"]
        log = folder / "start.log"
        with log.open("wb") as output:
            starter = subprocess.Popen(
                [*command, *own, *shared],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Node(starter=starter, log=log)


@contextmanager
def cluster(**environment: str) -> Iterator[Cluster]:
    """Yield a cluster of which nothing runs yet; whatever was started is killed in the end.

    Inside the block `os.environ` holds its token, which all that join must have, and `environment`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: Unix sockets below it allow 107 bytes in all
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    made = Cluster(folder=folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("RAY_")]:
                patch.delenv(name)
            for name, value in (token | environment).items():
                patch.setenv(name, value)
            yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)
