"""Looks into an SQLite file before MLflow does, which adds its tables to the database of another program."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from ablate.base.errors import RequestError
from ablate.base.files import sqlite_file
from ablate.ledger.schema import metadata

REVISION = re.compile(r"^(down_)?revision\b.*?=\s*['\"](\w+)['\"]", re.M)  # in a migration script of alembic
VERSION = "alembic_version"
BUSY_SECONDS = 5.0
TABLES_SHOWN = 3


def require_mlflow(uri: str) -> str:
    """Return one line on the SQLite file at `uri`; nothing is written.

    Raises RequestError if it is neither empty nor a database of this MLflow, nor a ledger, whose tables have other
    names. Other stores, and files that cannot be opened now, are left to MLflow.
    """
    file = sqlite_file(uri)
    if file is None or not file.is_file():
        return f"{uri}: not made yet" if file is not None else uri
    try:
        tables, revision = _read(file)
    except sqlite3.OperationalError:  # locked, or not to be read
        return str(file)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        raise _refused(file, "it is no SQLite database") from None
    if not tables - metadata.tables.keys():
        return f"{file}: without tables of MLflow yet"
    known, newest = _revisions()
    if revision is None or (revision not in known and not tables >= {"experiments", "runs", "latest_metrics"}):
        names = ", ".join(sorted(tables)[:TABLES_SHOWN])
        raise _refused(file, f"it is the database of another program (tables {names}, …)")
    if revision not in known:
        raise _refused(file, f"it is the database of another MLflow (its revision {revision} is not known here)")
    if revision != newest:
        advice = f"`mlflow db upgrade {uri}` changes it, after a backup"
        raise _refused(file, f"it is the database of an older MLflow (revision {revision}, not {newest}). {advice}")
    return f"{file}: a database of this MLflow"


def _read(file: Path) -> tuple[set[str], str | None]:
    """Return the names of a database's tables, and alembic's revision."""
    address = f"file:{quote(str(file.absolute()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found = connection.execute(f"SELECT * FROM {VERSION}").fetchone() if VERSION in tables else None
    return tables, None if found is None else str(found[0])


def _revisions() -> tuple[set[str], str | None]:
    """Return the revisions that the installed MLflow knows, and the newest; MLflow is not imported."""
    spec = find_spec("mlflow")
    folder = Path(str(spec and spec.origin)).parent / "store" / "db_migrations" / "versions"
    found = [REVISION.findall(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")]
    known = {name for file in found for down, name in file if not down}
    before = {name for file in found for down, name in file if down}
    return known, next(iter(known - before), None)


def _refused(file: Path, reason: str) -> RequestError:
    return RequestError(f"{file}: MLflow cannot keep runs there: {reason}. Name another place by --tracking-uri")
