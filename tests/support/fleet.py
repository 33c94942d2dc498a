"""A search whose trials are stepped in a random order, while drivers and workers die."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from ablate.core.trial import Decision, TrialConfig, TrialKey
from ablate.engine.training.family import family
from ablate.ledger import Ledger, StudyWriter
from ablate.study import Study
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import ENDLESS, Value, accuracy, hold_of, report_at, search_of, url_in


def value(config: TrialConfig, epoch: int) -> float:
    """Return `accuracy`, but NaN for the highest learning rates after a while."""
    return math.nan if family(config).training.learning_rate > 0.05 and epoch > 2 else accuracy(config, epoch)


class Fleet:
    """Up to `slots` trials in flight, stepped in a random order, in a world where things die.

    With `dying`, now and then the driver is killed, a worker dies, a trial is paused, or one goes back to an earlier
    checkpoint and says again what it has said.
    """

    def __init__(self, study: Study, folder: Path, *, slots: int, seed: int, dying: bool, value: Value = value) -> None:
        folder.mkdir()
        self.study, self.slots, self.dying = study, slots, dying
        self.value = value
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.ledger = Ledger.open(url_in(folder), clock=self.clock, monotonic=self.clock)
        self.flying: dict[TrialKey, TrialConfig] = {}
        self.epochs: dict[TrialKey, int] = {}
        self.most_flying: dict[str, int] = {}
        self.kills = 0
        self.writer: StudyWriter
        self.search: Search
        self._drive()

    def _drive(self) -> None:
        self.writer = hold_of(self.study, self.ledger)
        self.search = search_of(self.study, self.writer, self.ledger, ENDLESS)

    def run(self) -> dict[str, Any]:
        """Run the study to its end and return what is in its ledger, in the order of trials and epochs."""
        while not self._over():
            chance = self.rng.random() if self.dying else 1.0
            if chance < 0.03:
                self._kill()
            elif chance < 0.08 and self.flying:
                key = self.rng.choice(list(self.flying))
                del self.flying[key]
                self.search.fail(key, "its node died", kind="died") if chance < 0.05 else self.search.pause(key)
            elif self.flying:
                self._step(self.rng.choice(list(self.flying)))
        assert self.search.finished
        found = contents(self.ledger)
        self.writer.release()
        self.ledger.close()
        return found

    def _over(self) -> bool:
        while len(self.flying) < self.slots and (config := self.search.next_trial()) is not None:
            self.flying[config.key] = config
            back = self.rng.randint(0, 1) if self.dying else 0
            self.epochs[config.key] = max(self.epochs.get(config.key, 0) - 1 - back, 0)
            if config.stage == "search":
                own = sum(c.key.dataset == config.key.dataset and c.stage == "search" for c in self.flying.values())
                self.most_flying[config.key.dataset] = max(self.most_flying.get(config.key.dataset, 0), own)
        return not self.flying

    def _kill(self) -> None:
        self.kills += 1
        self.flying.clear()
        self.writer.release()
        self._drive()

    def _step(self, key: TrialKey) -> None:
        config = self.flying[key]
        epoch = self.epochs[key] = self.epochs[key] + 1
        decision = self.search.report(key, report_at(config, epoch, self.value))
        if decision is Decision.STOP or epoch == config.epochs:
            del self.flying[key]


def contents(ledger: Ledger) -> dict[str, Any]:
    """Return what is promised to be equal: everything but who wrote it when, and how often something was tried."""
    reports = sorted(ledger.reports("s"), key=lambda r: (r.key, r.epoch, r.replicate))
    return {
        "trials": [
            (t.config.to_json(), str(t.state), t.epochs_done, t.error, t.sampler_state, t.params)
            for t in ledger.trials("s")
        ],
        "reports": [
            (str(r.key), r.epoch, r.replicate, json.dumps(r.metrics), r.diverged, r.final, str(r.decision))
            for r in reports
        ],
        "notes": sorted(
            (str(n.dataset), n.kind, json.dumps(n.payload))
            for n in ledger.events("s")
            if n.kind not in ("driver_started", "resumed", "retried", "test_opened")
        ),
    }
