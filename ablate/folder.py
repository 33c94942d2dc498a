"""A flat folder of whole files, on a disk or in an object store: written in one step, or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from ablate.errors import CheckpointDownError, RequestError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Place = Path | str
"""A folder: a Path on a disk, or an object store's URL, such as `s3://bucket/prefix`."""


REFUSALS = ("NO_SUCH_BUCKET", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "credentials")


def below(place: Place, *names: str) -> Place:
    """Return the place of `names` below `place`."""
    if isinstance(place, Path):
        return place.joinpath(*names)
    address, mark, query = place.partition("?")  # pyarrow takes options such as endpoint_override from the query
    return "/".join([address.rstrip("/"), *map(quote, names)]) + mark + query


def shown(place: Place) -> str:
    """Return `place` as a message may show it: without credentials and options."""
    if isinstance(place, Path):
        return str(place)
    scheme, mark, rest = place.partition("?")[0].rpartition("://")
    user, at, address = rest.partition("@")
    return scheme + mark + (address if at and "/" not in user else rest).rstrip("/")


class Folder(Protocol):
    """Whole files by name; every method raises OSError where the place does not answer."""

    def names(self) -> list[str]:
        """Return the names of its files in order; none where the folder does not exist."""

    def read(self, name: str) -> bytes:
        """Return a file's content; raise FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file in one step: it is durable when this returns, and a reader sees all of it or none."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        """Remove what killed writers left of files whose names are `chosen`."""


def open_folder(place: Place) -> Folder:
    """Return the folder at `place`, which need not exist; raise RequestError for a URL that is not understood.

    Absolute paths and `file:///path` are folders on a disk as well.
    """
    if isinstance(place, Path):
        return DiskFolder(place)
    path = Path(unquote(place.removeprefix("file://")))
    if path.is_absolute():
        return DiskFolder(path)
    return StoreFolder(*_file_system(place))


def require_writable(place: Place) -> None:
    """Write a small file and remove it again.

    Raises, in one line, RequestError where `place` does not let this, CheckpointDownError where it does not answer now.
    """
    name = f".probe-{os.getpid()}"
    try:
        folder = open_folder(place)
        folder.write(name, b"")
        folder.remove(name)
    except OSError as error:
        said = one_line(error)
        known = isinstance(place, Path) or any(reason in said for reason in REFUSALS)
        kind = RequestError if known else CheckpointDownError
        raise kind(f"{shown(place)}: cannot be written ({said})") from error


def one_line(error: OSError) -> str:
    """Return in one line what a disk or a store said."""
    return " ".join((error.strerror or str(error) or type(error).__name__).split())


def copy_into(place: Place, paths: Iterable[Path]) -> None:
    """Write files, and folders with all that is in them, into `place`; raise OSError where it does not answer."""
    for path in paths:
        if path.is_dir():
            copy_into(below(place, path.name), sorted(path.iterdir()))
        else:
            open_folder(place).write(path.name, path.read_bytes())


class DiskFolder:
    """A folder on a disk; what is being written is named `*.tmp` until it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Return the names of its whole files in order."""
        if not self.path.is_dir():
            return []
        return sorted(p.name for p in self.path.iterdir() if p.suffix != ".tmp" and p.is_file())

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Write beside the file, force to the disk, and rename."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f"{name}.{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync()

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        """Remove what killed writers left of files whose names are `chosen`."""
        for fragment in self.path.glob("*.tmp"):
            name, _, _ = fragment.name.removesuffix(".tmp").rpartition(".")
            if chosen(name):
                fragment.unlink(missing_ok=True)

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class StoreFolder:
    """A prefix of an object store, where a file appears when its upload is complete."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self.files, self.path = files, path

    def names(self) -> list[str]:
        """Return the names of its files in order."""
        from pyarrow.fs import FileSelector, FileType

        found = self.files.get_file_info(FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == FileType.File)

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, content: bytes) -> None:
        """Upload a file."""
        with self.files.open_output_stream(f"{self.path}/{name}") as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        try:
            self.files.delete_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        """Do nothing: a store holds no halves of files."""


@lru_cache(maxsize=8)  # a client of a store keeps its connections
def _file_system(url: str) -> tuple[FileSystem, str]:
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    address, _, query = url.partition("?")
    if address.startswith("s3://") and "allow_delayed_open" not in query:
        query = f"{query}&allow_delayed_open=true".lstrip("&")  # one request per file, and no upload is left half done
    try:
        files, path = FileSystem.from_uri(f"{address}?{query}" if query else address)
        if not path:
            raise ValueError("it names no bucket")
    except (ArrowInvalid, ValueError) as error:
        reason = one_line(OSError(str(error).replace(url, shown(url))))
        raise RequestError(f"{shown(url)}: not the URL of an object store, s3://bucket/prefix ({reason})") from None
    return files, path.rstrip("/")
