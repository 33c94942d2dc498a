"""Ledgers for tests: the same contract on SQLite and PostgreSQL, and small values to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, NullPool, create_engine

from ablate.core.config import Size
from ablate.core.trial import Report, TrialKey
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.training.train_config import TrainConfig
from ablate.ledger import Ledger, NewTrial, StudyWriter
from support.entries import entry
from support.trials import family_trial

STUDY = "s"
SHAPE = InputShape(tokens=16, features=4, outputs=10, train_samples=1437)
SIZE: Size = {"params": 12_345, "params_body": 9_876, "flops": 2**40}


class Clock:
    """A clock that only the test moves (UTC epoch seconds)."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('tmp_path')}/ledger.sqlite"
    else:
        yield request.getfixturevalue("postgres_server").empty()


def key(number: int, dataset: str = "digits") -> TrialKey:
    """Return the key of a trial of the test study."""
    return TrialKey(study=STUDY, dataset=dataset, number=number)


def new_trial(number: int, dataset: str = "digits", *, replicates: int = 2, **changes: Any) -> NewTrial:
    """Return a suggestion; `changes` are fields of its TrialConfig."""
    values: dict[str, Any] = {
        "key": key(number, dataset),
        "stage": "search",
        "model": ModelConfig(width=60, heads=2),
        "task": entry(task="digits", patch=(2, 2)),
        "train": TrainConfig(epochs=9),
        "seeds": tuple(range(100, 100 + replicates)),
        "study_seed": 7,
        "parameters": {"model.width": 60, "model.mlp": "none", "train.learning_rate": 1e-3},
    }
    config = family_trial(**(values | changes))
    return NewTrial(config=config, size=SIZE, facts=SHAPE, sampler_state={"attempt": 1, "values": [0.5, None]})


def report_of(epoch: int, *losses: float, final: bool = False, **changes: Any) -> Report:
    """Return a report with one replicate per loss (two of them when none is given)."""
    metrics = tuple({"val_loss": loss, "val_accuracy": 1 - loss} for loss in losses or (0.5 / epoch, 0.25 / epoch))
    return Report(epoch=epoch, metrics=metrics, wall_seconds=1.5 * epoch, final=final,
                  checkpoint=f"epoch-{epoch:04d}", **changes)  # fmt: skip


def take(ledger: Ledger, **changes: Any) -> StudyWriter:
    """Take the hold of the test study."""
    values: dict[str, Any] = {"file_text": "study: s\n", "fingerprint": "abc", "seed": 7, "holder": "ada"}
    return ledger.acquire(STUDY, **(values | changes))


@contextmanager
def raw_connection(ledger: Ledger) -> Iterator[Connection]:
    """Yield a connection beside the ledger's own."""
    url = ledger._database.url.render_as_string(hide_password=False)
    with create_engine(url, poolclass=NullPool).connect() as connection:
        yield connection
