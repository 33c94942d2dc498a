"""A driver that runs as long as a test wants."""

from __future__ import annotations

import time
from pathlib import Path

from ablate.ledger import Ledger
from ablate.study import parse_study
from ablate.tuning import Search
from support.ledgers import SHAPE, Clock
from support.searches import run_trial, size_of
from support.trials import measure_by

STUDY = """\
study: looked
datasets: {digits: {patch: 4}, more: {task: digits, patch: 4}}
model: {width: {choices: [8, 16, 24, 32]}, depth: 1, mlp: none}
training: {epochs: 2}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 4, wall_clock: 1h}
confirm: {replicates: 2}
"""


class Driver:
    """Drives the study in `text` on a ledger in `folder`, without training anything."""

    def __init__(self, folder: Path, text: str = STUDY, storage: str | None = None) -> None:
        self.study, self.text = parse_study(text), text
        self.runs = folder / "my runs"
        home = self.runs / self.study.name
        home.mkdir(parents=True)
        self.clock = Clock(time.time())
        url = storage or f"sqlite:///{home}/ledger.sqlite"
        self.ledger = Ledger.open(url, clock=self.clock, monotonic=self.clock)
        self.writer = self.ledger.acquire(
            self.study.name, file_text=text, fingerprint=self.study.fingerprint(), seed=0, holder="ada (process 12)"
        )
        self.search = Search(
            self.study, self.writer, self.ledger, measure=measure_by(size_of), facts_of=lambda dataset: SHAPE
        )

    def run(self, trials: int) -> None:
        """Run a number of trials to their ends."""
        for _ in range(trials):
            config = self.search.next_trial()
            assert config is not None
            run_trial(self.search, config)

    def leave(self) -> None:
        """Give the study back."""
        self.writer.release()
        self.ledger.close()
