"""What a kubelet and KubeRay do with a rendered RayJob, as far as a machine without containers can.

Each pod gets a mount namespace of its own: the root read-only as its security context says, emptyDirs, the ConfigMap,
the data; and the environment that its manifest describes, from a Secret and a ConfigMap given as dictionaries. The
container's image is this machine. Processes and network are shared, so ports come from the caller.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raylets import STORE_BYTES, Node, free_port

REPOSITORY = Path(__file__).resolve().parents[2]
_MADE: list[Path] = []
KEPT = ("LANG", "LC_ALL")
PATH = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])


def missing() -> str | None:
    """Return why no pod can be run here, or None."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        return "mount namespaces need root and unshare"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "no mount namespace can be made here"


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """Where what the cluster would provide lies on this machine; emptyDirs are made below `scratch`."""

    secret: Mapping[str, str]
    settings: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]  # ConfigMaps with files, by name
    data: Path
    scratch: Path


@dataclass
class Pod:
    """One pod of a manifest: its template, its own volumes, and what runs in it."""

    spec: Mapping[str, Any]
    volumes: Volumes
    folder: Path
    extra: Mapping[str, str]
    nodes: list[Node] = field(default_factory=list)

    @property
    def container(self) -> Mapping[str, Any]:
        """The first container."""
        first: Mapping[str, Any] = self.spec["containers"][0]
        return first

    def begin(self, container: Mapping[str, Any], command: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
        """Start `command` as `container` would run it, without the machine's own environment."""
        script = "\n".join([*self._mounts(container), 'exec "$@"'])
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        with log.open("ab") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "pod", *command],
                cwd="/",
                env=kept | {"PATH": PATH} | self._environment(container) | dict(self.extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, container: Mapping[str, Any], command: Sequence[str], *, seconds: float = 120.0) -> tuple[int, str]:
        """Run `command` to its end and return its exit code and what it printed."""
        log = self.folder / f"run-{len(list(self.folder.glob('run-*')))}.log"
        process = self.begin(container, command, log=log)
        code = process.wait(seconds)
        return code, log.read_text(errors="replace")

    def start_ray(self, arguments: Sequence[str]) -> Node:
        """Start Ray as KubeRay does: its own words, the group's rayStartParams, the container's limits."""
        cpus = self.container["resources"]["limits"]["cpu"]
        words = ["ray", "start", "--block", *arguments, "--object-store-memory", str(STORE_BYTES)]
        words += ["--dashboard-agent-listen-port", str(free_port()), "--metrics-export-port", str(free_port())]
        if "--num-cpus=0" not in words:
            words += [f"--num-cpus={cpus}"]
        log = self.folder / "ray.log"
        self.nodes.append(Node(starter=self.begin(self.container, words, log=log), log=log))
        return self.nodes[-1]

    def kill(self) -> None:
        """End every process of the pod at once."""
        for node in self.nodes:
            node.kill()
        self.nodes = []

    def _environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        sources = {"secretKeyRef": self.volumes.secret, "configMapKeyRef": self.volumes.settings}
        for variable in container.get("env", []):
            if "value" in variable:
                found[variable["name"]] = variable["value"]
                continue
            ((kind, reference),) = variable["valueFrom"].items()
            value = sources[kind].get(reference["key"])
            if value is None:
                assert reference.get("optional"), f"the pod would not start: {reference} is missing"
                continue
            found[variable["name"]] = value
        return found

    def _mounts(self, container: Mapping[str, Any]) -> list[str]:
        """Return the shell lines that give the container its file system; places outside it are made read-only last."""
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        sources = {mount["mountPath"]: self._source(volumes[mount["name"]]) for mount in container["volumeMounts"]}
        lines = []
        for target, source in sources.items():
            if not Path(target).exists():  # in an image the engine makes them
                Path(target).mkdir()
                _MADE.append(Path(target))
            if REPOSITORY.is_relative_to(target):  # a clone below /tmp is to be seen there
                inside = source / REPOSITORY.relative_to(target)
                inside.mkdir(parents=True, exist_ok=True)
                lines.insert(0, f"mount --bind {shlex.quote(str(REPOSITORY))} {shlex.quote(str(inside))}")
            lines.append(f"mount --rbind {shlex.quote(str(source))} {target}")
        lines.sort(key=lambda line: line.endswith(" /tmp"))  # sources may lie below /tmp
        if container["securityContext"]["readOnlyRootFilesystem"]:
            lines.append("mount -o remount,bind,ro /")
        return lines

    def _source(self, volume: Mapping[str, Any]) -> Path:
        own = self.folder / "volumes" / volume["name"]
        own.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            for name, text in self.volumes.files[volume["configMap"]["name"]].items():
                (own / name).write_text(text)
        elif "persistentVolumeClaim" in volume:
            return self.volumes.data
        return own


@dataclass
class RayCluster:
    """The pods of one attempt of a RayJob: the head, the workers, and the submitter's words."""

    job: Mapping[str, Any]
    volumes: Volumes
    token: str
    pods: list[Pod] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The rayClusterSpec."""
        cluster: Mapping[str, Any] = self.job["spec"]["rayClusterSpec"]
        return cluster

    @property
    def head(self) -> Pod:
        """The head's pod."""
        return self.pods[0]

    def start(self) -> str:
        """Run the head's init containers, then head and workers; return what the init containers printed."""
        self._add(self.spec["headGroupSpec"])
        said = ""
        for container in self.head.spec.get("initContainers", []):
            code, printed = self.head.run(container, container["command"])
            said += printed
            assert code == 0, f"init container {container['name']}: {printed}"
        start = {f"--{key}={value}" for key, value in self.spec["headGroupSpec"]["rayStartParams"].items()}
        ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={free_port()}"]
        self.head.start_ray(["--head", "--node-ip-address=127.0.0.1", *ports, *sorted(start)])
        for group in self.spec["workerGroupSpecs"]:
            for _ in range(group["replicas"]):
                self._add(group).start_ray([f"--address=127.0.0.1:{self.port}", "--node-ip-address=127.0.0.1"])
        return said

    def submit(self, submission: str) -> tuple[int, str]:
        """Hand the entrypoint to the head as the submitter's pod does, and return its exit code and words."""
        template = self.job["spec"]["submitterPodTemplate"]["spec"]
        pod = self._pod(template)
        command = (
            f"ray job submit --address http://127.0.0.1:{self.dashboard} --no-wait --submission-id {submission} -- "
        )
        return pod.run(pod.container, ["/bin/sh", "-c", command + self.job["spec"]["entrypoint"]])

    def stop(self) -> tuple[int, str]:
        """Run the head's preStop hook as it is written."""
        hook = self.head.container["lifecycle"]["preStop"]["exec"]["command"]
        return self.head.run(self.head.container, hook)

    def kill(self) -> None:
        """End every pod at once."""
        for pod in self.pods:
            pod.kill()

    def _add(self, group: Mapping[str, Any]) -> Pod:
        self.pods.append(self._pod(group["template"]["spec"]))
        return self.pods[-1]

    def _pod(self, spec: Mapping[str, Any]) -> Pod:
        folder = self.volumes.scratch / f"pod-{len(list(self.volumes.scratch.glob('pod-*')))}"
        folder.mkdir(parents=True)
        extra = {
            "RAY_AUTH_MODE": self.job["spec"]["rayClusterSpec"]["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": self.token,
        }
        return Pod(spec=spec, volumes=self.volumes, folder=folder, extra=extra)


def remove_mount_points() -> None:
    """Remove the empty folders that stood for mount points."""
    while _MADE:
        _MADE.pop().rmdir()


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
