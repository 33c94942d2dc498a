"""What KubeRay does with a rendered RayJob, on pods of this machine (see pods_here): a cluster, its job, its end.

The pods share this machine's network, so ports come from here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.faults.raylets import STORE_BYTES
from support.pods_here import Here, Inside
from support.ports import free_port


@dataclass(frozen=True, kw_only=True)
class Provided:
    """What the namespace provides: Secrets and ConfigMaps by name, claims as folders; pods are made below `scratch`."""

    secrets: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, Mapping[str, str]]
    claims: Mapping[str, Path]
    scratch: Path


@dataclass
class RayCluster:
    """The pods of one attempt of a RayJob: the head, the workers, and the submitter's words."""

    job: Mapping[str, Any]
    provided: Provided
    token: str
    running: list[Inside] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The rayClusterSpec."""
        cluster: Mapping[str, Any] = self.job["spec"]["rayClusterSpec"]
        return cluster

    @property
    def head(self) -> Inside:
        """The head's container."""
        return self.running[0]

    def start(self) -> str:
        """Run the head's init containers, then head and workers; return what the init containers printed."""
        group = self.spec["headGroupSpec"]
        pod, said = group["template"]["spec"], ""
        for container in pod.get("initContainers", []):
            code, printed = self._to_its_end(pod, container, None)
            said += printed
            assert code == 0, f"init container {container['name']}: {printed}"
        ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={free_port()}"]
        self._start_ray(group, ["--head", *ports])
        for group in self.spec["workerGroupSpecs"]:
            for _ in range(group["replicas"]):
                self._start_ray(group, [f"--address=127.0.0.1:{self.port}"])
        return said

    def submit(self, submission: str) -> tuple[int, str]:
        """Hand the entrypoint to the head as the submitter's pod does, and return its exit code and words."""
        pod = self.job["spec"]["submitterPodTemplate"]["spec"]
        command = f"ray job submit --address http://127.0.0.1:{self.dashboard} --no-wait --submission-id {submission}"
        return self._to_its_end(
            pod, pod["containers"][0], ["/bin/sh", "-c", f"{command} -- {self.job['spec']['entrypoint']}"]
        )

    def stop(self) -> tuple[int, str]:
        """Run the head's preStop hook as it is written."""
        hook = self.head.pod.container["lifecycle"]["preStop"]["exec"]["command"]
        done = self.head.run(*hook)
        return done.returncode, done.stdout + done.stderr

    def kill(self) -> None:
        """End every pod at once."""
        while self.running:
            self.running.pop().kill()

    def logs(self) -> str:
        """Return what the job's driver has printed."""
        return self.head.run("sh", "-c", "tail -n 60 /tmp/ray/session_latest/logs/job-driver*").stdout

    def _start_ray(self, group: Mapping[str, Any], words: list[str]) -> None:
        """Start Ray as KubeRay does: its own words, the group's rayStartParams, the container's limits."""
        pod = group["template"]["spec"]
        parameters = group["rayStartParams"] | {"object-store-memory": str(STORE_BYTES), "node-ip-address": "127.0.0.1"}
        parameters |= {name: str(free_port()) for name in ("dashboard-agent-listen-port", "metrics-export-port")}
        parameters.setdefault("num-cpus", pod["containers"][0]["resources"]["limits"]["cpu"])
        options = [f"--{key}={value}" for key, value in sorted(parameters.items())]
        here = self._here(pod, pod["containers"][0])
        self.running.append(here.start(["ray", "start", "--block", *words, *options]))

    def _to_its_end(self, pod: Any, container: Any, command: list[str] | None) -> tuple[int, str]:
        here = self._here(pod, container)
        with here.started(command) as inside:
            code = inside.wait(120)
        return code, here.log()

    def _here(self, pod: Any, container: Any) -> Here:
        claims = {volume["name"]: volume["persistentVolumeClaim"] for volume in pod["volumes"]
                  if "persistentVolumeClaim" in volume}  # fmt: skip
        folder = self.provided.scratch / f"pod-{len(list(self.provided.scratch.glob('pod-*')))}"
        folder.mkdir(parents=True)
        return Here(
            folder=folder, pod=pod, container=container,
            secrets=self.provided.secrets, settings=self.provided.settings,
            folders={name: self.provided.claims[claim["claimName"]] for name, claim in claims.items()},
            changes={"RAY_AUTH_MODE": self.spec["authOptions"]["mode"], "RAY_AUTH_TOKEN": self.token},
        )  # fmt: skip


def until(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait for `condition`; fail where it never comes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def driver_pids(study: str) -> list[int]:
    """Return the processes that drive `study`'s job: Python running `ablate search`, not the shells around it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/bin/ablate") for word in words[:2]) and study.encode() in b" ".join(words):
            found.append(int(place.name))
    return found


def kill_driver(study: str) -> None:
    """`kill -9` of the driver alone."""
    pids = driver_pids(study)
    assert pids, "there is no driver to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
