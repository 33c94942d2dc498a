"""What a tracker has still to show, and the packages that some trackers need."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.core.trial import TrialKey
from ablate.ledger import Ledger, TrialRecord
from ablate.tracking.patient import PatientTracker


class Changes:
    """The trials of a study that changed since a tracker showed them last; at first all of them."""

    def __init__(self, ledger: Ledger, study: str) -> None:
        self._ledger = ledger
        self._study = study
        self._revision = -1
        self._owed: dict[TrialKey, TrialRecord] = {}

    def started(self) -> list[TrialRecord]:
        """Return the changed trials, without those that have not started yet, in order of data set and number."""
        for trial in self._ledger.trials_since(self._study, self._revision):
            self._owed[trial.key] = trial
            self._revision = max(self._revision, trial.revision)
        return [trial for _, trial in sorted(self._owed.items()) if trial.attempt > 0 or trial.state.finished]

    def done(self, trial: TrialRecord) -> None:
        """Note that `trial` has been shown as it is."""
        del self._owed[trial.key]


class HomeTracker(PatientTracker):
    """A tracker that writes below `home`, a study's folder."""

    system = ""

    def __init__(
        self, _name: str = "", *, home: Path, uri: str | None = None, store: object = None, **more: Any
    ) -> None:
        self.home = home.absolute()
        super().__init__(label=f"{self.system} {self.home}", **more)
        self._changes = Changes(self._ledger, self._study.name)


def require_package(name: str) -> None:
    """Raise RequestError, naming the extra to install, if the package of tracker `name` cannot be imported."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise RequestError(
            f"--tracker {name} needs the package {name}, which is not installed ({error}). Type: pip install"
            f" 'ablate-search[{name}]'"
        ) from None
