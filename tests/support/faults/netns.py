"""Hosts in network namespaces behind one bridge, whose links can be cut and mended (root only)."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Host:
    """One namespace with one address; commands run in it by `within`."""

    name: str
    address: str
    link: str

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another one on this host."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Take the link down: what is sent is lost, and nobody is told."""
        ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Take the link up again."""
        ip("link", "set", self.link, "up")


def missing() -> str | None:
    """Return why no namespace can be made here, or None."""
    if os.getuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian: iproute2)"
    probe = f"ablate-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    ip("netns", "del", probe)
    return None


def free_prefix() -> str:
    """Return the first three bytes of a network that this machine is not in: a killed test may have left one."""
    used = ip("-4", "-o", "addr")
    return next(prefix for prefix in (f"10.219.{n}" for n in range(1, 255)) if f" {prefix}." not in used)


def ip(*arguments: str) -> str:
    """Run `ip` and return what it prints; raise RuntimeError with what it says."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def hosts(count: int) -> Iterator[tuple[str, list[Host]]]:
    """Yield this machine's address, as the hosts reach it, and so many hosts. All is removed in the end."""
    own, prefix = secrets.token_hex(2), free_prefix()
    bridge = f"ab{own}"
    made = [Host(name=f"ablate-{own}-{n}", address=f"{prefix}.{n + 2}", link=f"ab{own}v{n}") for n in range(count)]
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{prefix}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for host in made:
            _join(host, bridge)
        yield f"{prefix}.1", made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _join(host: Host, bridge: str) -> None:
    inner = f"{host.link}i"
    ip("netns", "add", host.name)
    ip("link", "add", host.link, "type", "veth", "peer", "name", inner)
    ip("link", "set", inner, "netns", host.name)
    ip("link", "set", host.link, "master", bridge)
    ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", inner)
    ip("-n", host.name, "link", "set", inner, "up")
    ip("-n", host.name, "link", "set", "lo", "up")
    host.mend()
