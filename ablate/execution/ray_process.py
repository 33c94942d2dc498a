"""Starts a Ray on this machine and ends with its driver: `own_ray` runs this file as a process that leads a group.

It prints one line of JSON, the GCS's HOST:PORT as `address`, or an `error` and whether it is one of this `machine`.
Standard input is closed when the driver has ended, however it did: then this process kills its group. Ray's processes
end with it, too.
"""

import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

# The dashboard's server, which `include_dashboard=False` leaves without a dashboard, and those of the autoscaler and of
# `log_to_driver`. Where Ray names them otherwise they run.
SUPERFLUOUS = (b"/dashboard/dashboard.py", b"/monitor.py", b"/log_monitor.py")
POLL_SECONDS = 0.02


def end_with_driver() -> None:
    """Wait for the end of the driver and kill this process's group."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


def end_superfluous(started: threading.Event) -> None:
    """Kill those of Ray's processes that one machine does without, while they import their libraries."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")  # those of the main thread; not everywhere
    while children.exists() and not started.wait(POLL_SECONDS):
        for child in children.read_text().split():
            with suppress(OSError):  # it has just ended
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if any(word.endswith(SUPERFLUOUS) for word in words):
                    os.kill(int(child), signal.SIGKILL)


def main() -> None:
    """Start a Ray with the resources of the command line and keep it."""
    started = threading.Event()
    threading.Thread(target=end_with_driver, daemon=True).start()
    threading.Thread(target=end_superfluous, args=[started], daemon=True).start()
    import ray

    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        ray.init(address="local", **options, **json.loads(sys.argv[1]))
    except Exception as error:  # a bare Exception if a process is late
        machine = isinstance(error, OSError | ValueError) and not isinstance(error, TimeoutError)
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "machine": machine}), flush=True)
        return
    started.set()
    print(json.dumps({"address": ray.get_runtime_context().gcs_address}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
