"""Small studies, a fake model size and fake reports for tests of the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablate.core.trial import Decision, Report, TrialConfig
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.size import NetworkSize
from ablate.engine.training.family import family
from ablate.ledger import Ledger, StudyWriter, TrialRecord
from ablate.study import Study
from ablate.tuning import Search
from ablate.tuning.state.trial_queue import PATIENCE, GroupKey, Patience, alone
from support.ledgers import SHAPE, Clock
from support.trials import measure_by

Value = Callable[[TrialConfig, int], float | tuple[float, ...]]


def size_of(model: ModelConfig, shape: InputShape) -> NetworkSize:
    """Return a size that grows with width and depth, as a real one does."""
    body = model.width * model.width * model.depth
    return NetworkSize(params=body + 10 * model.width, params_body=body, flops=2 * body)


def study_of(**changes: Any) -> Study:
    """Return a study of one data set, two objectives and a mixed, conditional space; `changes` are its fields."""
    fields: dict[str, Any] = {
        "study": "s",
        "seed": 3,
        "datasets": {"digits": {}},
        "model": {
            "width": {"int": [8, 64], "step": 8},
            "depth": {"int": [1, 32], "log": True},
            "similarity": {"choices": ["separate", "shared", "collapsed"]},
            "heads": {"choices": [1, 2, 4], "when": {"model.similarity": ["separate", "shared"]}},
            "mlp": {"choices": ["none", 64]},
        },
        "training": {
            "epochs": 9,
            "learning_rate": {"float": [1e-4, 1e-1], "log": True},
            "label_smoothing": {"float": [0.0, 0.3], "step": 0.1},
            "weight_decay": {"float": [0.0, 0.1]},
        },
        "objectives": TWO,
        "sampler": {"name": "random", "startup_trials": 5},
        "scheduler": {"name": "none"},
        "budget": {"trials": 12},
        "confirm": None,
    }
    return Study.model_validate(fields | changes)


ONE = [{"metric": "val_accuracy", "direction": "maximize"}]
TWO = [*ONE, {"metric": "params", "direction": "minimize", "log": True}]


def accuracy(config: TrialConfig, epoch: int) -> float:
    """Return a closed-form accuracy in (0, 1): best at a learning rate of 1e-2, wide and deep, rising with epochs."""
    off = (math.log10(family(config).training.learning_rate) + 2) ** 2
    capacity = family(config).model.width * math.sqrt(family(config).model.depth)
    return (1 - math.exp(-epoch / 3)) * math.exp(-0.3 * off) * capacity / (capacity + 40)


def report_at(config: TrialConfig, epoch: int, value: Value = accuracy, **extra: float) -> Report:
    """Return the report of a trial after an epoch, the last one final; `value` is of all its seeds, or of each."""
    found, final = value(config, epoch), epoch == config.epochs
    scores = found if isinstance(found, tuple) else (found,) * len(config.seeds)
    test = final and config.stage == "confirm"
    rows = tuple(
        {"train_loss": 1.0, "val_loss": 1 - score, "val_accuracy": score, **extra}
        | ({"test_loss": 0.5, "test_accuracy": score} if test else {})
        for score in scores
    )
    gone = tuple(math.isnan(score) for score in scores)
    return Report(epoch=epoch, metrics=rows, wall_seconds=float(epoch), diverged=gone, final=final)


@contextmanager
def driving(study: Study, url: str, *, clock: Clock | None = None) -> Any:
    """Yield a fresh driver's Search on the ledger at `url`."""
    clock = clock or Clock()
    with Ledger.open(url, clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        yield search_of(study, writer, ledger)


def hold_of(study: Study, ledger: Ledger, **changes: Any) -> StudyWriter:
    """Take the study's hold over from whoever has it."""
    values: dict[str, Any] = {"file_text": "study: s\n", "fingerprint": study.fingerprint(), "seed": study.seed}
    return ledger.acquire(study.name, **(values | {"holder": "ada", "takeover": True} | changes))


def search_of(
    study: Study,
    writer: StudyWriter,
    ledger: Ledger,
    patience: Patience = PATIENCE,
    group_key: GroupKey = alone,
    gpus_per_trial: float = 1.0,
    only: Sequence[str] = (),
) -> Search:
    """Return a Search with the fake size."""
    size, facts = measure_by(size_of), lambda dataset: SHAPE
    return Search(
        study,
        writer,
        ledger,
        measure=size,
        facts_of=facts,
        group_key=group_key,
        patience=patience,
        gpus_per_trial=gpus_per_trial,
        only=only,
    )


ENDLESS = Patience(attempts=1000, resumptions=1000)  # how often something died is no part of what must be equal


def run_trial(search: Search, config: TrialConfig, value: Value = accuracy) -> Decision:
    """Report a trial's epochs until it ends or is stopped; return the last decision."""
    for epoch in range(1, config.epochs + 1):
        decision = search.report(config.key, report_at(config, epoch, value))
        if decision is Decision.STOP:
            return decision
    return decision


def run_all(search: Search, value: Value = accuracy) -> list[TrialConfig]:
    """Run trials one after the other until there is none left; return them in order."""
    done = []
    while (config := search.next_trial()) is not None:
        run_trial(search, config, value)
        done.append(config)
    return done


def url_in(folder: Path) -> str:
    """Return the URL of a ledger in `folder`."""
    return f"sqlite:///{folder}/ledger.sqlite"


@contextmanager
def opened(study: Study, folder: Path, clock: Clock | None = None) -> Iterator[tuple[Search, StudyWriter, Ledger]]:
    """Yield a search with its hold and ledger."""
    clock = clock or Clock()
    with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        yield search_of(study, writer, ledger), writer, ledger


def stored(folder: Path) -> list[TrialRecord]:
    """Return the ledger's trials."""
    with Ledger.open(url_in(folder)) as ledger:
        return ledger.trials("s")


def notes(folder: Path, kind: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Return the ledger's notes of one kind."""
    with Ledger.open(url_in(folder)) as ledger:
        return [(n.dataset, n.payload) for n in ledger.events("s") if n.kind == kind]


class CrashError(Exception):
    """Stands for kill -9 between two writes."""


def dying(write: Any, left: list[int]) -> Any:
    """Return `write`, which raises instead once `left[0]` writes are done."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise CrashError
        left[0] -= 1
        return write(*args, **kwargs)

    return guarded
