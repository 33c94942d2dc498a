"""Where a study lives and what it runs on: everything that is asked on the command line and not in the study file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablate.errors import RequestError
from ablate.folder import Place, below


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Folders, addresses and resources of one command."""

    runs_dir: Path
    storage: str | None = None
    store: str | None = None
    data_dir: Path | None = None
    tracker: str = "mlflow"
    tracking_uri: str | None = None
    executor: Literal["ray", "local"] = "ray"
    gpus: int | None = None
    gpus_per_trial: float = 1.0
    cpus_per_trial: float | None = None
    address: str | None = None
    device: str = "auto"
    trainer: str = "train"
    grace_seconds: float = 25.0
    metrics_port: int | None = None
    extend: bool = False
    takeover: bool = False

    def home(self, study: str) -> Path:
        """Return the folder of `study`: ledger, checkpoints, tables, report."""
        return self.runs_dir / study

    def checkpoint_root(self, study: str) -> Place:
        """Return the place below which checkpoints of `study` lie: in `store`, or in the study's home."""
        return below(self.store, study) if self.store else self.home(study).absolute()

    def storage_url(self, study: str) -> str:
        """Return the URL of the study's ledger: `storage`, or SQLite in the study's home."""
        return self.storage or f"sqlite:///{(self.home(study) / 'ledger.sqlite').absolute()}"

    def make_home(self, study: str) -> Path:
        """Create the study's home and return it; raise RequestError where it cannot be written."""
        home = self.home(study)
        try:
            (home / "checkpoints").mkdir(parents=True, exist_ok=True)
            probe = home / f".probe-{os.getpid()}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            reason = error.strerror or str(error)
            raise RequestError(
                f"{home}: cannot be written ({reason}). Choose another folder with --runs-dir or ABLATE_RUNS."
            ) from None
        return home
