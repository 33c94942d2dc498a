"""A real Slurm on this machine: Debian's packages unpacked into a folder, a controller, two nodes of two GPUs each."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.deployed import DEPLOY
from support.ports import free_port

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15")
CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
NODES = ("n1", "n2")
SECONDS = 240
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={libraries}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1} CPUs=4 RealMemory=100000 Gres=gpu:2
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2} CPUs=4 RealMemory=100000 Gres=gpu:2
PartitionName=main Nodes=n1,n2 Default=YES State=UP
"""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A Slurm that runs; jobs are submitted in `folder`, with `bin/` in front of PATH."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def call(self, *command: str) -> str:
        """Return what a client of Slurm prints."""
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_"))}
        done = subprocess.run(
            [f"{self.folder}/bin/{command[0]}", *command[1:]], cwd=self.folder,
            env=known | self.variables | {"PATH": path}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, file: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
        """Submit a file of deploy/slurm, and return the number of the job."""
        small = ("--cpus-per-gpu=1", "--mem-per-gpu=1G", *options)
        return self.call("sbatch", "--parsable", *small, str(DEPLOY / "slurm" / file), *arguments)

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING, and its nodes."""
        return self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %N")

    def shown(self, job: str, name: str) -> str:
        """Return a field of `scontrol show job`."""
        words = self.call("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def until(self, job: str, state: str) -> None:
        """Wait until a job has a state; one that waits to be started again is started now."""
        wait_for(lambda: self.state(job).split()[0] == state, lambda: f"{self.state(job)}\n{self.log(job)}")

    def start_again(self, job: str) -> None:
        """Wait until a job is in the queue again, and let it start now instead of after Slurm's two minutes."""
        wait_for(lambda: self.shown(job, "Reason") == "BeginTime", lambda: f"{self.state(job)}\n{self.log(job)}")
        before = self.shown(job, "Restarts")
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now")
        wait_for(
            lambda: self.shown(job, "Restarts") != before or self.state(job).split()[0] != "PENDING",
            lambda: self.state(job),
        )

    def log(self, job: str) -> str:
        """Return what a job has printed."""
        path = self.folder / f"ablate-{job}.log"
        return path.read_text() if path.exists() else ""

    def reports(self, job: str) -> int:
        """Return the number of reports of a job so far."""
        path = self.folder / f"ablate-{job}.jsonl"
        return path.read_text().count('"event": "report"') if path.exists() else 0


def wait_for(true: Callable[[], bool], found: Callable[[], str]) -> None:
    """Return when `true` is; fail after SECONDS with what is `found`."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, found()
        time.sleep(0.2)


def unpacked(folder: Path) -> Path:
    """Return a folder with Slurm's packages, fetched by their names; skip where they are not to be had."""
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        pytest.skip("Slurm: this is no Debian (no apt-get)")
    folder.mkdir()
    done = subprocess.run(
        ["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.skip(f"Slurm: {(done.stderr.strip().splitlines() or ['apt-get download failed'])[-1]}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "root"], cwd=folder, check=True)
    for name in ("slurmctld", "slurmd", "slurmstepd"):  # by another name they load no plugin for GPUs
        (folder / "root/usr/sbin" / name).symlink_to(f"{name}-wlm")
    return folder / "root"


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start a Slurm whose files lie in `folder`, and end it."""
    root = unpacked(folder / "packages")
    (libraries,) = root.glob("usr/lib/*/slurm-wlm")
    paths = f"{libraries.parent}:{libraries}"
    (loader,) = [*Path("/lib64").glob("ld-linux-x86-64.so.2"), *Path("/lib").glob("ld-linux-aarch64.so.1")]
    ports = {name: free_port() for name in ("port", *NODES)}
    configuration = folder / "slurm.conf"
    values = {"folder": folder, "libraries": libraries, "user": getpass.getuser()}
    configuration.write_text(CONFIGURATION.format(**values, **ports))
    gpus = [folder / f"gpu{number}" for number in range(4)]
    for gpu in gpus:
        gpu.touch()
    lines = [f"NodeName={NODES[number // 2]} Name=gpu File={gpu}\n" for number, gpu in enumerate(gpus)]
    (folder / "gres.conf").write_text("".join(lines))
    for name in ("state", "bin", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    for name in CLIENTS:  # the loader's option reaches no job, as LD_LIBRARY_PATH would
        client = folder / "bin" / name
        client.write_text(f'#!/bin/sh\nexec {loader} --library-path {paths} {root}/usr/bin/{name} "$@"\n')
        client.chmod(0o755)
    daemons = [
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node, "-d", f"{root}/usr/sbin/slurmstepd"] for node in NODES),
    ]
    running = []
    known = os.environ | {"LD_LIBRARY_PATH": paths, "SLURM_CONF": str(configuration)}
    try:
        for name, *options in daemons:
            with (folder / f"{name}.log").open("a") as log:
                command = [f"{root}/usr/sbin/{name}", *options]
                running.append(subprocess.Popen(command, env=known, stdout=log, stderr=log, start_new_session=True))
        ours = Slurm(folder=folder, variables={"SLURM_CONF": str(configuration)})
        count = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        said = folder / "slurmctld.log"
        wait_for(lambda: (folder / "state/clustername").exists() and ours.call(*count) == "2", said.read_text)
        yield ours
    finally:
        for daemon in reversed(running):
            daemon.terminate()
            daemon.wait(60)
