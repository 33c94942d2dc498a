"""The database behind the ledger: opening, transactions, retries and errors of one line."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from ablate.base.errors import LedgerDownError, LedgerError, LedgerMovedError, NoLedgerError, StorageError
from ablate.base.files import make_file, new_file
from ablate.base.redaction import ADVICE, redact_text, redact_url
from ablate.base.shared_disk import journal_mode
from ablate.ledger import schema

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5_000
FIRST_DELAY_SECONDS = 0.01
LAST_DELAY_SECONDS = 1.0
# Errors of SQLite, and classes of SQLSTATE, that a retry may fix: connection, rollback, lock, shutdown, many clients.
TRANSIENT = ("SQLITE_BUSY", "SQLITE_LOCKED", "08", "40", "55P03", "57P", "25P03", "53300")
PASSING = ("SQLITE_FULL", "SQLITE_IOERR", "53")  # no disk, memory or connections now
PASSING_REFUSALS = ("starting up", "shutting down", "recovery mode", "too many", "remaining connection slots")
POSTGRES_CONNECT = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "ablate",
}
ADVICE_BY_CODE = {
    "SQLITE_FULL": "the disk is full; free some space and run the same command again",
    "SQLITE_IOERR": "the disk failed to read or write; check its space and health, then run the same command again",
    "SQLITE_NOTADB": "the file is not a database; name another one or move it away",
    "SQLITE_CORRUPT": "the file is damaged; restore it from a copy",
    "SQLITE_READONLY": "the file or its folder is not writable",
    "SQLITE_CANTOPEN": "the file cannot be opened; check that its folder exists and is writable",
    "SQLITE_BUSY": "another process kept it locked; is a stopped process holding it?",
    "42501": "its user lacks a right here; tables are made after GRANT CREATE ON SCHEMA public TO it",
}
NO_ROOM_ADVICE = "the disk has no space or no inodes left; remove some files and run the same command again"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}  # no space or no inodes left, for anyone or for this user
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Database:
    """Runs transactions on SQLite or PostgreSQL; transient faults are retried for up to `retry_seconds`."""

    def __init__(self, url: str, *, create: bool, retry_seconds: float, keep: bool = True) -> None:
        """Open `url`; with `create`, make the tables. Raise LedgerError in one line, without a password.

        Without `keep` the tables are made in a transaction that is rolled back. `ledger_id` is the id that was made
        with the tables.
        """
        self.url = _parse(url)
        self._asked = url
        self.place = redact_url(url)
        self.retry_seconds = retry_seconds
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._path = Path(str(self.url.database)).absolute()  # of an SQLite file
        if self.is_sqlite:
            _prepare_file(self.url, self.place, create)
        self.ledger_id = ""
        self._file: tuple[int, int] | None = None  # device and inode of an SQLite file that is open
        self.engine = _engine(self.url, self.place)
        self._writer = self.engine.execution_options(ablate_writes=True)
        snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = self.engine.execution_options(**snapshot)
        try:
            self._open(create, keep)
            self._file = self._file_here() if self.is_sqlite else None
        except BaseException:
            self.engine.dispose()
            raise

    @staticmethod
    def refuse_where_none_can_be_made(url: str) -> None:
        """Make a ledger's tables on PostgreSQL and roll them back; raise LedgerError if that fails."""
        if _parse(url).get_backend_name() != "sqlite":
            Database(url, create=True, retry_seconds=0.0, keep=False).close()

    def write(self, body: Callable[[Connection], T], *, retry: bool = True) -> T:
        """Run `body` in one committed transaction; it may run again after a transient fault.

        Raises LedgerMovedError, and commits nothing, if the file that is open is not the one at its path any more.
        """

        def whole(connection: Connection) -> T:
            result = body(connection)
            if self._file != (self._file_here() if self._file else None):
                raise self._moved()
            return result

        return self._transact(self._writer, whole, self.retry_seconds if retry else 0.0)

    def read(self, body: Callable[[Connection], T]) -> T:
        """Run `body` on one snapshot of the database, which never blocks a writer."""
        return self._transact(self._reader, body, self.retry_seconds)

    def checkpoint(self) -> None:
        """Force committed transactions to the disk on SQLite (PASSIVE: blocks nobody); PostgreSQL does so at commit."""
        if self.is_sqlite:
            self._retry(lambda: self._pragma("wal_checkpoint(PASSIVE)"), 0.0)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def explain(self, error: SQLAlchemyError) -> LedgerError:
        """Return the one-line LedgerError of a database fault."""
        if self._file is not None and self._file_here() != self._file:
            return self._moved()
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        code = _code(error) or ""
        advice = next((advice for prefix, advice in ADVICE_BY_CODE.items() if code.startswith(prefix)), "")
        told = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
        said = redact_text(told, self._asked) or type(cause).__name__
        kind = LedgerDownError if _passing(error) else LedgerError
        if code.startswith("SQLITE_CANTOPEN") and self._has_no_room():
            kind, advice = LedgerDownError, NO_ROOM_ADVICE
        return kind(f"ledger {self.place}: {advice} ({said})" if advice else f"ledger {self.place}: {said}")

    def _file_here(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the ledger's path, None if there is none, or an emptied one."""
        try:
            about = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (about.st_dev, about.st_ino) if about.st_size else None

    def _moved(self) -> LedgerMovedError:
        return LedgerMovedError(
            f"ledger {self.place}: its file was removed, renamed or replaced while it was open, so nothing more is"
            " written. Put it back with its folder, then run the same command again"
        )

    def _has_no_room(self) -> bool:
        """Return whether no file can be created beside the database: SQLite then says that it cannot open its files."""
        try:
            descriptor, scratch = new_file(self._path.parent, self._path.name)
        except OSError as error:
            return error.errno in NO_ROOM
        os.close(descriptor)
        scratch.unlink()
        return False

    def _transact(self, engine: Engine, body: Callable[[Connection], T], seconds: float) -> T:
        def transaction() -> T:
            with engine.begin() as connection:
                return body(connection)

        return self._retry(transaction, seconds)

    def _retry(self, attempt: Callable[[], T], seconds: float) -> T:
        """Call `attempt` until it meets no transient fault; raise LedgerError for other faults, or after `seconds`."""
        deadline, delay = time.monotonic() + seconds, FIRST_DELAY_SECONDS
        while True:
            try:
                return attempt()
            except SQLAlchemyError as error:
                if not _transient(error) or time.monotonic() + delay > deadline:
                    raise self.explain(error) from error
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, LAST_DELAY_SECONDS)

    def _open(self, create: bool, keep: bool) -> None:
        wait = self.retry_seconds if self.is_sqlite else 0.0  # report at once a server that does not answer
        version = self._transact(self._reader, schema.stored_version, wait)
        if new := version is None:
            if not create:
                raise NoLedgerError(f"ledger {self.place}: there is no ledger here")
            self.write(schema.create if keep else _made_and_taken_back)
            if not keep:
                return
            version = self.read(schema.stored_version)
        if self.is_sqlite and create:
            self._retry(lambda: self._use_journal(new=new), wait)
        schema.check_version(version if version is not None else 0, self.place)
        self.ledger_id = self.read(schema.ledger_id)

    def _use_journal(self, *, new: bool) -> None:
        mode = journal_mode(self._path.parent)  # `wal` for a new file only: other machines may have mounted an old one
        if (new or mode == "delete") and _writable(self._path) and self._pragma("journal_mode") != mode:
            self._pragma(f"journal_mode={mode}")

    def _pragma(self, statement: str) -> object:
        with self.engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            try:
                return driver.execute(f"PRAGMA {statement}").fetchone()[0]
            except sqlite3.Error as error:
                raise OperationalError(statement, {}, error) from error


def _made_and_taken_back(connection: Connection) -> None:
    nested = connection.begin_nested()
    schema.create(connection)
    nested.rollback()


def _parse(url: str) -> URL:
    if url.startswith("postgres://"):
        raise StorageError(
            "ledger: 'postgres://' is not a storage URL; write 'postgresql+psycopg://USER@HOST/DATABASE'"
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StorageError(
            "ledger: the storage is not a URL; write 'sqlite:///PATH' or 'postgresql+psycopg://USER@HOST/DATABASE'"
        ) from None
    if url.count("@") > 1 and "@" in f"{parsed.host}{parsed.database}":
        raise StorageError(f"ledger {redact_url(url)}: the user or the password ends at the first '@'; {ADVICE}")
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise StorageError(
            f"ledger: storage {parsed.drivername!r} is not known; write 'sqlite:///PATH' or"
            " 'postgresql+psycopg://USER@HOST/DATABASE'"
        )
    return parsed


def _prepare_file(url: URL, place: str, create: bool) -> None:
    if url.database in (None, "", ":memory:"):
        raise StorageError(f"ledger {place}: a ledger needs a file; write 'sqlite:///PATH'")
    path = Path(str(url.database))
    try:
        if path.is_dir():
            raise StorageError(f"ledger {place}: this is a folder, not a file")
        if not create and not path.is_file():
            raise NoLedgerError(f"ledger {place}: there is no ledger here")
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{path.parent} is a file" if path.parent.is_file() else error.strerror
        raise LedgerError(f"ledger {place}: the folder cannot be made or read ({reason})") from error
    if create:
        with suppress(OSError):  # it exists, or cannot be created, which SQLite reports next
            make_file(path)
        try:
            with TemporaryFile(dir=path.parent) as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise StorageError(
                    f"ledger {place}: its file system has no locks, which SQLite needs; mount it with locks (Lustre:"
                    " -o flock), or type --storage sqlite:///FILE with a file on another one"
                ) from error


def _engine(url: URL, place: str) -> Engine:
    arguments: dict[str, Any]
    if url.get_backend_name() == "postgresql":
        arguments = {key: value for key, value in POSTGRES_CONNECT.items() if key not in url.query}
    else:
        url = url.set(database=_sqlite_target(Path(str(url.database)).absolute()), query={"uri": "true"})
        arguments = {"timeout": BUSY_TIMEOUT_MS / 1e3, "isolation_level": None}
    try:
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_pre_ping=not arguments.get("timeout"),
            hide_parameters=True,
            connect_args=arguments,
        )
    except ModuleNotFoundError as error:
        raise StorageError(f"ledger {place}: the driver is not installed: pip install 'psycopg[binary]'") from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _configure_postgres)
    return engine


def _sqlite_target(path: Path) -> str:
    """Return the SQLite URI of a file, for reading only if the file or its folder is not writable.

    In a folder that is not writable, SQLite reads a WAL database (byte 18 is 2) only if the WAL exists or the file is
    opened as immutable.
    """
    target = f"file:{quote(str(path))}"
    if not path.exists() or _writable(path):
        return f"{target}?mode=rw"  # the file was created before: none is begun in the place of one that is gone
    with suppress(OSError), path.open("rb") as file:
        if file.read(19)[18:] == b"\x02" and not path.with_name(f"{path.name}-wal").exists():
            return f"{target}?mode=ro&immutable=1"
    return f"{target}?mode=ro"


def _writable(path: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return all(os.access(place, os.W_OK, effective_ids=effective) for place in (path, path.parent))


def _configure_sqlite(connection: Any, _record: object) -> None:
    # In WAL mode NORMAL loses nothing when a process dies; a power cut may lose what came after the last checkpoint.
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("ablate_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _configure_postgres(connection: Any, _record: object) -> None:
    # A driver frozen in the middle of a transaction must not keep its lock: the server ends the session.
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '20s'")
        cursor.execute("SET lock_timeout = '30s'")
    connection.commit()


def _code(error: SQLAlchemyError) -> str | None:
    """Return the name that SQLite gives an error, or PostgreSQL's SQLSTATE; None without either."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        return str(getattr(cause, "sqlite_errorname", ""))
    return getattr(cause, "sqlstate", None)


def _passing(error: SQLAlchemyError) -> bool:
    """Return whether the same request may succeed later: the server is down, or the disk is full."""
    code, said = _code(error), str(getattr(error, "orig", ""))
    if code is None and "FATAL:" in said:  # a server that refuses every connection gives no SQLSTATE
        return any(reason in said for reason in PASSING_REFUSALS)
    return _transient(error) or (code or "").startswith(PASSING)


def _transient(error: SQLAlchemyError) -> bool:
    code = _code(error)
    if code is None and isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return (code or "").startswith(TRANSIENT)
