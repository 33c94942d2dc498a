"""A container of a pod on this machine, as far as that goes without an engine: its command as written, as its user.

A root of its own that is read-only, with the machine's /usr and this repository's packages in it in place of an image;
the pod's volumes at their mount points; its user and group, no capability and no new privilege; its environment with
Secrets and ConfigMaps looked up; process 1 of a namespace of processes. Not here: cgroup limits, seccomp, the network.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.paths import REPOSITORY

IMAGE_PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
ALONE = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
KEPT = ("passwd", "group", "hosts", "nsswitch.conf", "ssl", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")

Plain = Mapping[str, Any]


def require_containers() -> None:
    """Skip the test where this machine does not let us make one."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv", "chroot", "nsenter", "ip"))):
        pytest.skip("needs root, unshare and setpriv")
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")


@dataclass(kw_only=True)
class Here:
    """One container: `secrets` and `settings` are looked up by name and key, `folders` are volumes by name.

    A volume without a folder is empty. `changes` are variables that are another here, such as an address.
    """

    folder: Path
    pod: Plain
    container: Plain
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return its environment; raise KeyError where something that it needs is not there, as a pod would wait."""
        found = {"PATH": IMAGE_PATH, "HOME": "/", "HOSTNAME": "here"}
        for entry in self.container.get("env", []):
            if "value" in entry:
                found[entry["name"]] = entry["value"]
                continue
            for kind, known in (("secretKeyRef", self.secrets), ("configMapKeyRef", self.settings)):
                reference = entry["valueFrom"].get(kind)
                if reference and reference["key"] in known.get(reference["name"], {}):
                    found[entry["name"]] = known[reference["name"]][reference["key"]]
                elif reference and not reference.get("optional"):
                    raise KeyError(f"{reference['name']}: no {reference['key']}")
        return found | dict(self.changes)

    def script(self, command: Sequence[str]) -> str:
        """Return what makes the root and runs `command` in it."""
        root = self.folder / "root"
        lines = ["set -eu", f"mount -t tmpfs -o mode=755 tmpfs {root}", f"cd {root}", "mkdir proc dev etc tmp usr var"]
        lines += [f"mount --rbind {path} {path[1:]}" for path in ("/usr", "/dev")]
        lines += [f"[ -L /{name} ] && cp -P /{name} . || true" for name in ("bin", "sbin", "lib", "lib64")]
        lines += [f"cp -a /etc/{name} etc/ 2>/dev/null || true" for name in KEPT]
        for index, mount in enumerate(self.container["volumeMounts"]):
            place = mount["mountPath"]
            lines.append(f"mkdir -p .{place}")
            source = self.volume(mount["name"], index)
            lines.append(source.format(place=f".{place}"))
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro .{place}")
        for path in (str(REPOSITORY), sys.base_prefix):  # behind the volumes: a clone may lie below /tmp
            if not path.startswith("/usr"):
                lines += [f"mkdir -p .{path}", f"mount --bind {path} .{path}", f"mount -o remount,bind,ro .{path}"]
        lines += ["mount -t proc proc proc", "mount -o remount,bind,ro usr", "mount -o remount,ro ."]
        context = {**self.pod["securityContext"], **self.container["securityContext"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        user = ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", "--clear-groups",
                "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]  # fmt: skip
        lines.append(f"exec {shutil.which('chroot')} . {shlex.join([*user, '--', 'env', '--chdir=/tmp', *command])}")
        return "\n".join(lines) + "\n"

    def volume(self, name: str, index: int) -> str:
        """Return the command that mounts a volume at `{place}`; a Secret's items are written first."""
        (volume,) = [each for each in self.pod["volumes"] if each["name"] == name]
        context = self.pod["securityContext"]
        if name in self.folders:
            return f"mount --bind {self.folders[name]} {{place}}"
        if "secret" in volume or "configMap" in volume:
            kind, known = ("secret", self.secrets) if "secret" in volume else ("configMap", self.settings)
            source = volume[kind].get("secretName", volume[kind].get("name"))
            files = self.folder / f"volume-{index}"
            files.mkdir(exist_ok=True)
            os.chown(files, 0, context["fsGroup"])
            items = volume[kind].get("items") or [{"key": key, "path": key} for key in known[source]]
            for item in items:
                path = files / item["path"]
                path.write_text(known[source][item["key"]])
                os.chown(path, 0, context["fsGroup"])
                path.chmod(volume[kind].get("defaultMode", 0o644))
            return f"mount --bind {files} {{place}}"
        size = volume["emptyDir"].get("sizeLimit", "1Gi").removesuffix("i").lower()
        options = f"size={size},mode=2777,gid={context['fsGroup']}"
        return f"mount -t tmpfs -o {options} tmpfs {{place}}"

    @contextmanager
    def started(self, command: Sequence[str] | None = None, *, alone: bool = False) -> Iterator[Inside]:
        """Start the container, or `command` in its place; it is gone afterwards."""
        inside = self.start(command, alone=alone)
        try:
            yield inside
        finally:
            inside.kill()

    def start(self, command: Sequence[str] | None = None, *, alone: bool = False) -> Inside:
        """Start the container, or `command` in its place; its output goes to `folder/log`.

        `alone` gives it a network of its own, with nothing in it but 127.0.0.1.
        """
        (self.folder / "root").mkdir(parents=True, exist_ok=True)
        path = self.folder / "script"
        path.write_text(
            (f"{shutil.which('ip')} link set lo up\n" if alone else "")
            + self.script(command or [*self.container["command"], *self.container.get("args", [])])
        )
        words = [*ALONE, *(["--net"] if alone else []), "/bin/sh", str(path)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return Inside(self, process)

    def log(self) -> str:
        """Return what it has said."""
        return (self.folder / "log").read_text(errors="replace")


@dataclass(frozen=True)
class Inside:
    """A container that runs."""

    pod: Here
    process: subprocess.Popen[bytes]

    def wait(self, seconds: float) -> int:
        """Return the exit code of its command; raise TimeoutExpired where it does not end in time."""
        return self.process.wait(seconds)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it as its user, as `kubectl exec` and a hook do, and return how it ended."""
        words, environment = [*self._entering(), *command], self.pod.environment()
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def begin(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in it as its user."""
        with log.open("wb") as output:
            words = [*self._entering(), *command]
            return subprocess.Popen(words, env=self.pod.environment(), stdout=output, stderr=output)

    def terminate(self) -> None:
        """Send SIGTERM to process 1, as the kubelet does after the hook; nothing where it has ended."""
        for child in children(self.process.pid):
            os.kill(child, signal.SIGTERM)

    def kill(self) -> None:
        """End every process in it at once."""
        first = children(self.process.pid)
        self.process.kill()
        for child in first or children(self.process.pid):
            os.kill(child, signal.SIGKILL)  # process 1 of the namespace, and with it all others
        self.process.wait()

    def _first(self, seconds: float = 30.0) -> int:
        """Return process 1, once it stands on its own root."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for child in children(self.process.pid):
                if os.readlink(f"/proc/{child}/root") != "/":
                    return child
            assert self.process.poll() is None, self.pod.log()[-2000:]
            time.sleep(0.05)
        raise TimeoutError(self.pod.log()[-2000:])

    def _entering(self) -> list[str]:
        context = {**self.pod.pod["securityContext"], **self.pod.container["securityContext"]}
        user = [f"--setuid={context['runAsUser']}", f"--setgid={context['runAsGroup']}"]
        spaces = ["--mount", "--pid", "--net", "--root"]
        return ["nsenter", f"--target={self._first()}", *spaces, *user, "--", "env", "--chdir=/tmp"]


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []
