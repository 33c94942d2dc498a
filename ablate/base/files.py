"""Flat folders of files, on a disk or in an object store; each file is written atomically."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from ablate.base.errors import CheckpointDownError, RequestError
from ablate.base.redaction import ADVICE, error_text, has_password, redact_url

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Place = Path | str
"""A folder: a Path on a disk, or an object store's URL, such as `s3://bucket/prefix`."""


REFUSALS = ("NO_SUCH_BUCKET", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "credentials")
PROBE_BYTES = 2**16  # a full disk often still accepts an empty file
FILES_ONLY = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of fsync on a folder: CIFS, VirtualBox, some of FUSE
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW  # fails if the path exists, even as a link
STUDY_FOLDERS = ("checkpoints", "code", "maps", "models", "report", "wandb")  # in a study's home
SEED_FOLDER = "seed-"  # and the seed: the folder of files that the user's code keeps, in a trial's checkpoint folder
LEDGER_MARK = "ledger.json"  # in a study's home: the id and the address of its ledger
SEED_STATE = "state-"  # and the seed: the folder of its checkpoints, in that of the trial


def below(place: Place, *names: str) -> Place:
    """Return the place of `names` below `place`."""
    if isinstance(place, Path):
        return place.joinpath(*names)
    address, mark, query = place.partition("?")  # pyarrow takes options such as endpoint_override from the query
    return "/".join([address.rstrip("/"), *map(quote, names)]) + mark + query


def sqlite_url(file: Path) -> str:
    """Return the URL of an SQLite database; characters that mean something in a URL are written as %25, %3F and %23."""
    return "sqlite:///" + str(file).replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite URL, or None for any other address; the inverse of `sqlite_url`."""
    scheme, _, path = url.partition(":///")
    path = unquote(path.partition("?")[0])
    return Path(path) if scheme.partition("+")[0].lower() == "sqlite" and path and path != ":memory:" else None


class Folder(Protocol):
    """Files by name; every method raises OSError if the place does not answer."""

    def names(self) -> list[str]:
        """Return the sorted names of its files; an empty list if the folder does not exist."""

    def read(self, name: str) -> bytes:
        """Return a file's content; raise FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: it is durable when this returns, and a reader sees all of it or nothing."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        """Remove the partial files that killed writers left, for file names that are `chosen`."""


def open_folder(place: Place) -> Folder:
    """Return the folder at `place`, which need not exist; raise RequestError for a URL that is not understood.

    Absolute paths and `file:///path` are folders on a disk as well.
    """
    path = disk_path(place)
    if path is not None:
        return DiskFolder(path)
    return StoreFolder(*_file_system(str(place)))


def open_trial(place: Place) -> Folder:
    """Return the folder of a trial, HOME/checkpoints/DATA/NUMBER; writing a file begins no other home of the study."""
    path = disk_path(place)
    return open_folder(place) if path is None else DiskFolder(path, home=home_of(path))


def home_of(trial: Path) -> Path:
    """Return the study's home, in which the folder of a trial, or of the checkpoints of one of its seeds, lies."""
    return trial.absolute().parents[3 if trial.name.startswith(SEED_STATE) else 2]


_ledgers: dict[Path, str] = {}  # of the trials of this process: the id of their ledger, by their study's home


def expect_ledger(trial: Place | None, ledger: str) -> None:
    """Let this process write a trial's files only while its study's home is marked as that of this ledger."""
    if ledger and trial is not None and (path := disk_path(trial)) is not None:
        _ledgers[home_of(path)] = ledger


def _is_home(home: Path) -> bool:
    try:
        return _ledgers[home] in (home / LEDGER_MARK).read_text() if home in _ledgers else home.is_dir()
    except (FileNotFoundError, NotADirectoryError):
        return False


def disk_path(place: Place) -> Path | None:
    """Return the path of a place on a disk, or None if it is an object store's URL."""
    if isinstance(place, Path):
        return place
    path = Path(unquote(place.removeprefix("file://")))
    return path if path.is_absolute() else None


def require_writable(place: Place, *, called: Place | None = None) -> None:
    """Write a small file, read it back and remove it again; messages name `called`, by default `place`.

    Raises RequestError, in one line, if `place` does not allow this, CheckpointDownError if it is full or does not
    answer.
    """
    named = redact_url(place if called is None else called)
    name, written = f".probe-{secrets.token_hex(8)}", bytes(PROBE_BYTES)
    try:
        folder = open_folder(place)
        folder.write(name, written)
        found = folder.read(name)
        folder.remove(name)
    except OSError as error:
        raise _cannot_be_written(place, named, error) from error
    if found != written:
        raise RequestError(f"{named}: what was written does not come back")


def foreign(file: str) -> CheckpointDownError:
    """Return the error of a file that a trial reads back and that another study has written."""
    return CheckpointDownError(
        f"{file} belongs to another study, or to another command of it, and is not used. Put this study's file back, or"
        " move the other one away, and run the same command again"
    )


def make_folder(path: Path) -> None:
    """Create a folder and those above it; raise RequestError or CheckpointDownError as `require_writable` does."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_written(path, str(path), error) from error


def _cannot_be_written(place: Place, named: str, error: OSError) -> RequestError | CheckpointDownError:
    said = error_text(error, place)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = "free some space there and run the same command again"
        return CheckpointDownError(f"{named}: cannot be written ({said}); {free}")
    known = isinstance(place, Path) or any(reason in said for reason in REFUSALS)
    return (RequestError if known else CheckpointDownError)(f"{named}: cannot be written ({said})")


def remove_folder(place: Place) -> None:
    """Remove a folder and all in it, links and not what they lead to; raise OSError, also if `place` is a link."""
    disk = disk_path(place)
    if disk is None:
        files, path = _file_system(str(place))
        files.delete_dir(path)
    elif disk.is_symlink() or disk.exists():
        shutil.rmtree(disk)


def refuse_links(home: Path, *, folders: Sequence[str] = STUDY_FOLDERS) -> None:
    """Raise RequestError if a symbolic link leads a study's ledger, or anything in `folders`, out of its home.

    Whoever made the link would choose what is read and overwritten. `home` and the folders above it may be links. A
    table or study file that is a link is replaced when it is written (`DiskFolder.write`). What a seed's folder holds
    is the user's code's own, and no command reads or writes it.
    """
    for path in _entries(home, folders):
        if path.is_symlink():
            raise RequestError(f"{path}: is a symbolic link, which is not followed out of a study's folder. Remove it.")


def _entries(home: Path, folders: Sequence[str]) -> Iterator[Path]:
    yield from home.glob("ledger.*")  # SQLite's files, and the mark that names the ledger
    for place in (home / name for name in folders):
        yield place
        for folder, below_it, files in os.walk(place):
            yield from (Path(folder, name) for name in (*below_it, *files))
            if place.name == STUDY_FOLDERS[0] and len(Path(folder).relative_to(place).parts) == 2:  # of one trial
                below_it[:] = [name for name in below_it if not name.startswith(SEED_FOLDER)]


def make_file(path: Path) -> None:
    """Create an empty file with permissions by the umask; raise OSError if it exists or cannot be created.

    SQLite requests mode 0644 whatever the umask, and gives its other files (-wal, -shm) the database's permissions.
    """
    os.close(os.open(path, NEW, 0o666))


def new_file(folder: Path, name: str) -> tuple[int, Path]:
    """Create the temporary file in which `name` is written; return its descriptor and its path.

    It fails if a file or link is already there. The permissions follow the umask, and `Folder.sweep` recognises the
    name.
    """
    path = folder / f"{name}.{secrets.token_hex(8)}.tmp"
    return os.open(path, NEW, 0o666), path


def ensure_home() -> None:
    """Set HOME for this process and its children if the user has none: libraries refuse to be imported without.

    A container may run as a number without a name. The folder lies in the temporary folder, for this user alone.
    """
    try:
        Path.home()
    except RuntimeError:
        folder = Path(tempfile.gettempdir(), f"ablate-home-{os.geteuid()}")
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        os.environ["HOME"] = str(folder) if _is_private(folder) else tempfile.mkdtemp(prefix="ablate-home-")


def _is_private(folder: Path) -> bool:
    """Return whether this is a folder, not a link, of this user alone."""
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def copy_into(place: Place, paths: Iterable[Path]) -> None:
    """Copy files and folders, without symbolic links, into `place`; raise OSError if it does not answer."""
    for path in paths:
        if path.is_symlink():
            continue
        if path.is_dir():
            copy_into(below(place, path.name), sorted(path.iterdir()))
        else:
            open_folder(place).write(path.name, path.read_bytes())


class DiskFolder:
    """A folder on a disk; a file is named `*.tmp` until it is complete. It is not created where its `home` is gone."""

    def __init__(self, path: Path, *, home: Path | None = None) -> None:
        self.path, self.home = path, home

    def make(self) -> None:
        """Create the folder and those above it; raise OSError."""
        if self.home is not None and not _is_home(self.home):
            raise FileNotFoundError(
                errno.ENOENT, "the study's folder or its ledger.json was removed, renamed or replaced", str(self.home)
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the sorted names of its complete files, without symbolic links."""
        if not self.path.is_dir():
            return []
        whole = (path for path in self.path.iterdir() if path.suffix != ".tmp" and not path.is_symlink())
        return sorted(path.name for path in whole if path.is_file())

    def read(self, name: str, *, own: bool = False) -> bytes:
        """Return a file's content; raise OSError for a symbolic link, a pipe (without waiting for it) or a device.

        With `own` also for a file that is not this user's, or that others can write or reach by another name.
        """
        with os.fdopen(os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path / name))
            if own and (about.st_uid != os.geteuid() or about.st_mode & 0o022 or about.st_nlink != 1):
                raise OSError(errno.EPERM, "others can write it", str(self.path / name))
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Write a temporary file, sync it to the disk and rename it; a symbolic link of that name is replaced."""
        self.make()
        descriptor, temporary = new_file(self.path, name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        for fragment in self.path.glob("*.tmp"):
            name, _, _ = fragment.name.removesuffix(".tmp").rpartition(".")
            if chosen(name):
                fragment.unlink(missing_ok=True)

    def _sync(self) -> None:
        """Sync the folder, unless its file system syncs files only."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in FILES_ONLY:
                raise
        finally:
            os.close(descriptor)


class StoreFolder:
    """A prefix of an object store, where a file appears when its upload is complete."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self.files, self.path = files, path

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self.files.get_file_info(FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == FileType.File)

    def read(self, name: str) -> bytes:
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, content: bytes) -> None:
        with self.files.open_output_stream(f"{self.path}/{name}") as file:
            file.write(content)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.path}/{name}")

    def sweep(self, chosen: Callable[[str], bool]) -> None:
        """Do nothing: a store holds no partial files."""


@lru_cache(maxsize=8)  # a client of a store keeps its connections
def _file_system(url: str) -> tuple[FileSystem, str]:
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    address, _, query = url.partition("?")
    if address.startswith("s3://") and "allow_delayed_open" not in query:
        query = f"{query}&allow_delayed_open=true".lstrip("&")  # one request per file, and no partial upload
    try:
        if has_password(address) and address.count("@") > 1:  # the rest of the key would be used as a host
            raise ValueError(f"the secret key ends at the first '@': {ADVICE}")
        files, path = FileSystem.from_uri(f"{address}?{query}" if query else address)
        if not path:
            raise ValueError("it names no bucket")
    except (ArrowInvalid, ValueError) as error:
        asked = f"{redact_url(url)}: not the URL of an object store, s3://bucket/prefix"
        advice = f". Set AWS_SECRET_ACCESS_KEY instead, or {ADVICE}" if "Cannot parse" in str(error) else ""
        raise RequestError(f"{asked} ({error_text(error, url)}){advice}") from None
    return files, path.rstrip("/")
