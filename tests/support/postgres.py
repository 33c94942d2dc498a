"""A PostgreSQL server for the tests that ask for one: started once, on a free port, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine, text

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
PASSWORD = "tr0ub4dor"


@dataclass
class PostgresServer:
    """One running server; `url` names a database in it by name."""

    folder: Path
    port: int
    binaries: Path

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """Return the storage URL of `database`."""
        return f"postgresql+psycopg://ablate:{password}@127.0.0.1:{self.port}/{database}"

    def empty(self) -> str:
        """Create an empty schema and return the storage URL that sees nothing else; far faster than a database."""
        name = f"s{uuid4().hex[:12]}"
        engine = create_engine(self.url(), poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        return f"{self.url()}?options=-csearch_path%3D{name}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self.run("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` drops every connection without a farewell."""
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the owner of the folder; root is refused by the server."""
        command = [str(self.binaries / program), *arguments]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        # No pipes: the server would inherit them and keep them open.
        with (self.folder / f"{program}.out").open("w+b") as output:
            done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                  env=os.environ | {"PGPASSWORD": PASSWORD}, check=False)  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, output.read().decode()


def missing() -> str | None:
    """Return why no server can be started here, or None."""
    if not BINARIES:
        return "PostgreSQL's server is not installed (Debian: postgresql)"
    if os.getuid() == 0:
        if shutil.which("runuser") is None:
            return "PostgreSQL refuses to run as root, and there is no runuser"
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL refuses to run as root, and there is no user postgres"
    return None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; skips with the reason where none can be started."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with tempfile.TemporaryDirectory(prefix="ablate-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = PostgresServer(folder=folder, port=port, binaries=BINARIES[-1].parent)
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        server.run("initdb", "-D", str(folder / "data"), "-U", "ablate", "--pwfile", str(secret), "-A", "scram-sha-256",
                   "--no-sync", "-E", "UTF8", "--locale=C")  # fmt: skip
        server.start()
        try:
            yield server
        finally:
            server.stop()
