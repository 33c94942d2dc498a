"""Hand a study to a running Ray cluster: Ray's Jobs API, spoken to in one place."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import ResourceError
from ablate.execution.cluster import SAME_TOKEN

PROBE = 'python -c "import ablate; print(ablate.__version__)"'
PROBE_SECONDS = 120.0
POLL_SECONDS = 1.0
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A study as a Ray job: `words` are the command, run in a folder that holds the study file as `study.yaml`."""

    name: str
    study_text: str
    words: tuple[str, ...]


def submit(address: str, job: Job) -> str:
    """Start `job` on the cluster whose dashboard answers at `address` and return its submission id.

    Raises ResourceError where no dashboard answers, or where the cluster has no ablate; nothing is started then.
    """
    client = _client(address)
    _require_ablate(client, address)
    with tempfile.TemporaryDirectory(prefix="ablate-job-") as folder:
        (Path(folder) / "study.yaml").write_text(job.study_text, encoding="utf-8")
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return str(
            client.submit_job(
                entrypoint=shlex.join(job.words),
                submission_id=f"{job.name}-{moment}-{os.urandom(2).hex()}",
                runtime_env={"working_dir": folder},
                metadata={"study": job.name},
            )
        )


def follow(address: str, submission_id: str, say: Callable[[str], None]) -> str:
    """Hand the job's log to `say` as it comes, and return its last status: SUCCEEDED, FAILED or STOPPED."""
    client = _client(address)

    async def tail() -> None:
        async for lines in client.tail_job_logs(submission_id):
            say(lines)

    asyncio.run(tail())
    return _ended(client, submission_id, float("inf"))


def _require_ablate(client: Any, address: str) -> None:
    from ablate import __version__

    probe = client.submit_job(entrypoint=PROBE)
    status = _ended(client, probe, PROBE_SECONDS)
    said = client.get_job_logs(probe).strip().splitlines()
    if status in ENDED:
        client.delete_job(probe)
    if status != "SUCCEEDED":
        last = said[-1] if said else status
        raise ResourceError(
            f"--address {address}: the cluster has no ablate ({last}). Build its image from deploy/Dockerfile."
        )
    if said and said[-1] != __version__:
        raise ResourceError(f"--address {address}: the cluster has ablate {said[-1]}, this machine {__version__}.")


def _ended(client: Any, submission_id: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        status = str(client.get_job_status(submission_id).value)
        if status in ENDED or time.monotonic() > deadline:
            return status
        time.sleep(POLL_SECONDS)


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ResourceError(f"--address {address}: no Ray dashboard answers there: {text} {SAME_TOKEN}") from error
