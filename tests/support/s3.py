"""An S3 server for the tests that ask for one: moto's, on a free port of this machine, with one bucket."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

BUCKET = "ablate-tests"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "tr0ub4dor",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class S3Server:
    """One server in a thread; what it holds outlives `stop` and `start`."""

    port: int
    server: object = field(default=None, repr=False)

    def url(self, prefix: str = "", *, bucket: str = BUCKET) -> str:
        """Return the URL of a folder; `environment()` lets a process in."""
        place = "/".join(part for part in (bucket, prefix) if part)
        return f"s3://{place}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def environment(self) -> dict[str, str]:
        """Return the variables that another process needs."""
        return dict(ENVIRONMENT)

    def start(self) -> None:
        """Answer from now on."""
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self.server.stop()  # type: ignore[attr-defined]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections inside the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def create(self, bucket: str) -> None:
        """Create a bucket."""
        request = Request(f"http://127.0.0.1:{self.port}/{bucket}", method="PUT", data=b"")
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running server with the bucket BUCKET; the environment lets this process and its children in."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line per request
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = S3Server(port=probe.getsockname()[1])
    server.start()
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(server.environment())
    try:
        server.create(BUCKET)
        yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        server.stop()


@pytest.fixture
def s3_store(s3_server: S3Server) -> str:
    """The URL of an empty folder on the server."""
    return s3_server.url(f"test-{uuid4().hex[:12]}")
