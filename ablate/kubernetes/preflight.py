"""Checks of a cluster before anything is created there; the checks change nothing."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes.kubectl import Found, NotAllowedError, kubectl_get, kubectl_refusals
from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import rendered

SECRET, URL_KEY = "ablate", "storage-url"
ADVICE = {  # what to do, by a part of what the API server says
    "no matches for kind": "KubeRay is not installed (deploy/README.md, step 1).",
    'User "': "Ask for the Role ablate-user (deploy/base/access.yaml).",
    'namespaces "': "Type: kubectl apply -k deploy/overlays/…",
    "exceeded quota": "Ask for less, or for a larger quota.",
}
ENDED = ("Complete", "Failed", "ValidationFailed")
PLACEHOLDERS = ("…", "<", "REPLACE", "PASSWORD", "example.org")


def preflight(request: ClusterRequest) -> list[str]:
    """Return what could not be looked at in the cluster of kubectl's current context, one line each.

    Raises RequestError with everything that the cluster refuses or lacks for `request`.
    """
    faults, notes = [], []
    refused = kubectl_refusals(rendered(request))
    for line in refused:
        hint = next((advice for part, advice in ADVICE.items() if part in line), "")
        faults.append(Fault(path="kubectl apply --dry-run=server", value=None, rule=f"{line}.", hint=hint))
    if not any(re.search(r"no matches for kind|namespaces .* not found", line) for line in refused):
        for what, name, look in (("secret", SECRET, _secret_faults), ("rayjob", request.name, _job_faults)):
            try:
                found = kubectl_get([what, name, "--namespace", request.namespace])
                faults += [Fault(path=f"{what} {name}", value=None, rule=rule, hint=hint) for rule, hint in look(found)]
            except NotAllowedError:
                notes.append(f"{what} {name}: not looked at, you may not see it")
    if faults:
        raise RequestError("\n".join(fault.render(f"namespace {request.namespace}") for fault in faults))
    return notes


def _secret_faults(found: Found | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the Secret, and what to do; its address of the ledger is never quoted."""
    if found is None:
        yield "there is none.", "deploy/secret.sh makes it."
    elif URL_KEY not in (data := found.get("data") or {}):
        yield f"has no key {URL_KEY}.", "deploy/secret.sh makes it."
    else:
        try:
            url = urlsplit(base64.b64decode(data[URL_KEY], validate=True).decode())
            host, _ = url.hostname or "", url.port
        except (binascii.Error, ValueError):
            url, host = urlsplit(""), ""
        if url.scheme not in ("postgresql", "postgresql+psycopg") or not url.path.strip("/"):
            rule = f"the key {URL_KEY} is no address of a PostgreSQL database."
            yield rule, "Write postgresql+psycopg://USER:PASSWORD@HOST/DATABASE; a file would end with its pod."
        elif any(word in host or word in (url.password or "") for word in PLACEHOLDERS):
            yield f"the key {URL_KEY} still holds a placeholder.", ""


def _job_faults(found: Found | None) -> Iterator[tuple[str, str]]:
    """Yield that the study is there already: `kubectl apply` would change nothing of it."""
    if found is not None:
        state = (found.get("status") or {}).get("jobDeploymentStatus") or "not started"
        hint = "It is at work: nothing is to be done."
        if state in ENDED:
            name, namespace = (found["metadata"][key] for key in ("name", "namespace"))
            hint = f"To continue the study: kubectl delete rayjob {name} --namespace {namespace}"
        yield f"is there already ({state}), and `kubectl apply` would start nothing.", hint
