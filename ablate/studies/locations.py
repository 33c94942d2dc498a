"""Where a study lives: its folder, its ledger, its checkpoints, its data and its tracking."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.base.files import Place, below, make_folder, refuse_links, require_writable, sqlite_url
from ablate.base.plain_text import NAME_RULE, is_name, one_printable_line, storable
from ablate.base.redaction import redact_url

RUNS = Path("runs")
RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)([^/:].*)")
LONGEST_BELOW = ("x" * 100,) * 4  # no path in a study's folder is longer
OTHER_FOLDER = "Choose another folder with --runs-dir or ABLATE_RUNS."

VARIABLES = {"--storage": "ABLATE_STORAGE", "--store": "ABLATE_STORE", "--tracking-uri": "MLFLOW_TRACKING_URI"}


@dataclass(frozen=True, kw_only=True)
class Locations:
    """Folders and addresses of one command; `relocate` accepts other ones than a study began with.

    Relative paths begin at `folder`, the working directory when the object is made, whatever becomes of it later.
    Raises RequestError for a place that is not UTF-8, and for a runs folder that this user or file system cannot have.
    """

    runs_dir: Path
    storage: str | None = None
    store: str | None = None
    data_dir: Path | None = None
    tracker: str = "mlflow"
    tracking_uri: str | None = None
    relocate: bool = False
    folder: Path = field(default_factory=Path.cwd, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", self.folder / self.data_dir)
        if self.storage is not None and (relative := RELATIVE_SQLITE.fullmatch(self.storage)):
            object.__setattr__(self, "storage", f"{relative[1]}{self.folder}/{relative[2]}")
        named = {"--runs-dir": self.root, "--data-dir": self.data_dir, "--storage": self.storage, "--store": self.store}
        for option, place in (named | {"--tracking-uri": self.tracking_uri}).items():
            if place is not None and storable(name := str(place), len(name)) != name:
                told = one_printable_line(redact_url(name))
                raise RequestError(
                    f"{option} {told}: this is not UTF-8, which a ledger cannot hold. Name another place."
                )
        try:
            self.root.joinpath(*LONGEST_BELOW).lstat()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise RequestError(f"{self.root}: cannot be used ({error.strerror}). {OTHER_FOLDER}") from None

    @property
    def root(self) -> Path:
        """The folder of the studies' homes, as an absolute path."""
        return self.folder / self.runs_dir

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers by name."""
        return tuple(self.tracker.split(","))

    def runs_option(self) -> list[str]:
        """Return the words that name the runs folder in a command; none for the default folder."""
        return [] if self.runs_dir == RUNS else ["--runs-dir", str(self.runs_dir)]

    def home(self, study: str) -> Path:
        """Return the folder of `study`: ledger, checkpoints, tables, report.

        Every command finds a study by it, so it raises RequestError for what can be no study's name.
        """
        if not is_name(study):
            raise RequestError(f"study = {one_printable_line(repr(study))[:100]}: {NAME_RULE}")
        return self.root / study

    def checkpoint_root(self, study: str) -> Place:
        """Return the place below which checkpoints of `study` lie: in `store`, or in the study's home."""
        home = self.home(study)
        return below(self.store, study) if self.store else home.absolute()

    def storage_url(self, study: str) -> str:
        """Return the URL of the study's ledger: `storage`, or SQLite in the study's home."""
        return self.storage or sqlite_url(self.home(study) / "ledger.sqlite")

    def make_home(self, study: str) -> Path:
        """Create the study's home and return it.

        Raises RequestError if it cannot be written, CheckpointDownError if its disk is full.
        """
        home = self.home(study)
        refuse_links(home)
        try:
            make_folder(home / "checkpoints")
            require_writable(home)
        except RequestError as error:
            raise RequestError(f"{error}. {OTHER_FOLDER}") from None
        return home
