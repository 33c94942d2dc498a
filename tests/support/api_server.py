"""A small Kubernetes API server for the real `kubectl`: discovery, GET of what a test puts there, dry runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Plain = dict[str, Any]
KINDS = {  # group/version: {plural: (kind, namespaced)}
    "v1": {
        "namespaces": ("Namespace", False), "secrets": ("Secret", True), "configmaps": ("ConfigMap", True),
    },
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "ray.io/v1": {"rayjobs": ("RayJob", True)},
}  # fmt: skip


@dataclass
class ApiServer:
    """What is there, by plural and name; what may not be seen and what may not be created, by plural."""

    objects: dict[tuple[str, str], Plain] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    created: list[Plain] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @contextmanager
    def running(self, folder: Path) -> Iterator[dict[str, str]]:
        """Serve on this machine, and yield the environment in which kubectl finds it."""
        handler = type("Handler", (_Handler,), {"api": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
        context = {"name": "test-context", "context": {"cluster": "here", "user": "ada"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
        config |= {"users": [{"name": "ada", "user": {}}], "current-context": "test-context"}
        (folder / "kubeconfig").write_text(json.dumps(config))
        try:
            yield {"KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder), "no_proxy": "*"}
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def get(self, path: str) -> tuple[int, Plain]:
        """Return status and answer of a GET."""
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["openapi", "v3"]:
            return 200, _openapi(parts[2:])
        if path.startswith("/apis?") or parts == ["apis"]:
            return 200, _groups()
        if parts == ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        if version not in KINDS:
            return 404, _status(404, "NotFound", f"no {path}")
        if not rest:
            return 200, _resources(version)
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        return self._found(rest[0], rest[1] if len(rest) > 1 else None, KINDS[version][rest[0]][0])

    def _found(self, plural: str, name: str | None, kind: str) -> tuple[int, Plain]:
        self.asked.append(f"{plural}/{name}" if name else plural)
        if plural in self.forbidden:
            return 403, _status(403, "Forbidden", f'{plural} is forbidden: User "ada" cannot get resource "{plural}"')
        if name is None:
            items = [each for (one, _), each in self.objects.items() if one == plural]
            return 200, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": items}
        if (plural, name) not in self.objects:
            return 404, _status(404, "NotFound", f'{plural} "{name}" not found')
        return 200, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} | self.objects[plural, name]


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer(*self.api.get(self.path))

    def do_POST(self) -> None:
        """Answer a dry run of a creation."""
        created = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        plural = path.rpartition("/")[2]
        assert "dryRun=All" in query, "a check changes nothing"
        if plural in self.api.denied:
            self._answer(403, _status(403, "Forbidden", f'{plural} is forbidden: User "ada" cannot create "{plural}"'))
            return
        self.api.created.append(created)
        self._answer(201, created)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, found: Mapping[str, Any]) -> None:
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _openapi(parts: list[str]) -> Plain:
    """Return the index of what `kubectl` reads before a dry run, or the parameters that one version's objects take."""
    of_version = {each: f"apis/{each}" if "/" in each else f"api/{each}" for each in KINDS}
    if not parts:
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in of_version.values()}}
    (version,) = (each for each, place in of_version.items() if place == "/".join(parts))
    group, _, name = version.rpartition("/")
    taken = [{"name": each, "in": "query"} for each in ("dryRun", "fieldValidation")]
    paths = {
        f"/{of_version[version]}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "parameters": taken,
                "x-kubernetes-group-version-kind": {"group": group, "version": name, "kind": kind},
                "responses": {},
            }
        }
        for plural, (kind, _) in KINDS[version].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "here", "version": "1"}, "paths": paths}


def _groups() -> Plain:
    versions = [{"groupVersion": each, "version": each.partition("/")[2]} for each in KINDS if "/" in each]
    groups = [
        {"name": each["groupVersion"].partition("/")[0], "versions": [each], "preferredVersion": each}
        for each in versions
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resources(version: str) -> Plain:
    resources = [
        {"name": plural, "singularName": kind.lower(), "namespaced": scoped, "kind": kind, "verbs": ["get", "list"]}
        for plural, (kind, scoped) in KINDS[version].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _status(code: int, reason: str, message: str) -> Plain:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    }  # fmt: skip
