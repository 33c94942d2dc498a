"""Queries by `kubectl`: existing objects, a dry run of a manifest, and the current context."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from ablate.base.errors import RequestError

KUBECTL_SECONDS = 20

Found = dict[str, Any]


class NotAllowedError(RequestError):
    """The user may not see an object, so its existence is unknown."""


def kubectl_get(arguments: Sequence[str]) -> Found | None:
    """Return the result of `kubectl get ARGUMENTS`, or None if there is no such object.

    Raises NotAllowedError if the cluster forbids the query, RequestError if it does not answer.
    """
    done = _kubectl("get", *arguments, "-o", "json", "--ignore-not-found", f"--request-timeout={KUBECTL_SECONDS - 5}s")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["failed"])[-1]
        if "(Forbidden)" in said:
            raise NotAllowedError(said)
        if "doesn't have a resource type" in said:
            return None
        raise RequestError(f"kubectl get {' '.join(arguments)}: {said}")
    try:
        answer: Found | None = json.loads(done.stdout) if done.stdout.strip() else None
    except ValueError:
        raise RequestError(f"kubectl get {' '.join(arguments)}: the answer is no JSON") from None
    return answer


def kubectl_refusals(manifest: str) -> list[str]:
    """Return why the API server does not take a manifest in a dry run, which changes nothing; [] if it does."""
    done = _kubectl("apply", "--dry-run=server", "--filename=-", given=manifest)
    messages = [" ".join(each.split()) for each in re.split(r"^(?=error)", done.stderr, flags=re.M | re.I)]
    said = [each for each in messages if each.lower().startswith("error")]
    return [] if not done.returncode else list(dict.fromkeys(said)) or [messages[-1] or "failed"]


def kubectl_context() -> str | None:
    """Return the name of kubectl's current context, or None if none is set."""
    return _kubectl("config", "current-context").stdout.strip() or None


def _kubectl(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["kubectl", *arguments],
            capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False, input=given or "",
        )  # fmt: skip
    except FileNotFoundError:
        raise RequestError("kubectl is not installed: https://kubernetes.io/docs/tasks/tools") from None
    except subprocess.TimeoutExpired:
        raise RequestError(f"kubectl got no answer within {KUBECTL_SECONDS} s: is the cluster up?") from None
