"""Submits a study to a running Ray cluster through Ray's Jobs API."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from ablate import __version__
from ablate.base.errors import RequestError, ResourceError
from ablate.base.redaction import error_text
from ablate.base.scratch import scratch_folder
from ablate.execution.cluster import SAME_TOKEN
from ablate.execution.ray_private import NO_AGENT, use_token

OTHER_VERSION = 3
_PROBE = f'import ablate, sys; sys.exit({OTHER_VERSION} if ablate.__version__ != "{__version__}" else 0)'
PROBE = f"python -P -c '{_PROBE}'"
PROBE_SECONDS = 120.0
AGENT_SECONDS = 60.0
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

    Raises RequestError if `address` is not that of a dashboard, and ResourceError if no dashboard answers or the
    cluster has no ablate of this version. The study is not started then.
    """
    client = _client(address)
    _require_ablate(client, address)
    with scratch_folder("job") as folder:
        (folder / "study.yaml").write_text(job.study_text, encoding="utf-8")
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return _start(
            client,
            address,
            entrypoint=shlex.join(job.words),
            submission_id=f"{job.name}-{moment}-{os.urandom(2).hex()}",
            runtime_env={"working_dir": str(folder)},
            metadata={"study": job.name},
        )


def follow(address: str, submission_id: str, say: Callable[[str], None]) -> str:
    """Pass the job's log to `say` as it comes, and return its last status: SUCCEEDED, FAILED or STOPPED."""
    client = _client(address)

    async def tail() -> None:
        async for lines in client.tail_job_logs(submission_id):
            say(lines)

    asyncio.run(tail())
    return _end(client, submission_id, float("inf"))


def _require_ablate(client: Any, address: str) -> None:
    probe = _start(client, address, entrypoint=PROBE, submission_id=f"ablate-version-{os.urandom(4).hex()}")
    status = _end(client, probe, PROBE_SECONDS)
    code = client.get_job_info(probe).driver_exit_code
    said = client.get_job_logs(probe).strip().splitlines()
    if code == OTHER_VERSION:
        raise ResourceError(f"--address {address}: the cluster has another version of ablate than {__version__}, ours.")
    if status not in ENDED:
        waited = f"a short job is still {status} there after {PROBE_SECONDS:.0f} s"
        raise ResourceError(f"--address {address}: {waited}. Does the cluster have a free CPU?")
    if status != ENDED[0]:
        last = said[-1] if said else status
        raise ResourceError(
            f"--address {address}: the cluster has no ablate ({last}). Build its image from deploy/Dockerfile."
        )


def _start(client: Any, address: str, **job: Any) -> str:
    """Submit a job and return its id; retry while a new cluster has no agent to run it."""
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return str(client.submit_job(**job))
        except (OSError, RuntimeError, RayError) as error:
            if NO_AGENT not in str(error) or time.monotonic() > deadline:
                raise _explain_refusal(address, error) from error
        time.sleep(POLL_SECONDS)


def _end(client: Any, submission_id: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        status = str(client.get_job_status(submission_id).value)
        if status in ENDED or time.monotonic() > deadline:
            return status
        time.sleep(POLL_SECONDS)


def _client(address: str) -> Any:
    if not address.startswith(("http://", "https://")):
        raise RequestError(f"--address {address}: give the dashboard's address, http://HOST:8265")
    from ray.job_submission import JobSubmissionClient

    use_token()
    try:
        return JobSubmissionClient(address)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise _explain_refusal(address, error) from error


def _explain_refusal(address: str, error: Exception) -> ResourceError:
    text = error_text(error, first_line=True).rstrip(".")
    return ResourceError(f"--address {address}: no Ray dashboard takes a job there: {text}. {SAME_TOKEN}")
