"""Two studies share a database, driven in turns: each is as if it had a ledger of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Decision, TrialKey, TrialState
from ablate.ledger import Ledger, StudyWriter
from support.ledgers import Clock, new_trial, report_of

NAMES = ("a", "b")
ReportSummary = tuple[str, Callable[[StudyWriter, Callable[[int], TrialKey]], object]]

# The same data set, numbers and epochs in both, and never at the same state.
STEPS: list[ReportSummary] = [
    ("a", lambda h, key: h.add_trials([new_trial(n, key=key(n)) for n in range(2)])),
    ("b", lambda h, key: h.add_trials([new_trial(n, key=key(n)) for n in range(3)])),
    ("a", lambda h, key: h.start(key(0))),
    ("b", lambda h, key: h.start(key(0))),
    ("b", lambda h, key: h.start(key(1))),
    ("a", lambda h, key: h.report(key(0), report_of(1, 0.5, 0.6), Decision.CONTINUE)),
    ("b", lambda h, key: h.report(key(0), report_of(1, 0.1, 0.2), Decision.STOP, state=TrialState.PRUNED)),
    ("a", lambda h, key: h.report(key(0), report_of(2, 0.4, 0.5), Decision.CONTINUE)),
    ("b", lambda h, key: h.requeue(key(1), "its node died")),
    ("a", lambda h, key: h.set_mlflow_run(key(0), "run of a")),
    ("b", lambda h, key: h.set_mlflow_run(key(0), "run of b")),
    ("b", lambda h, key: h.note("seen", "digits", {"confirmed": [1]})),
    ("a", lambda h, key: h.add_trials([new_trial(2, key=key(2))])),
    ("b", lambda h, key: h.finish(key(2), TrialState.FAIL, "no")),
    ("b", lambda h, key: h.renew()),
    ("a", lambda h, key: h.release()),
]


def play(ledgers: dict[str, Ledger], clock: Clock) -> dict[str, Any]:
    """Take the steps, ten seconds apart, each in the ledger of its study; return what each ledger says of it."""
    with ExitStack() as stack:
        holds = {}
        for name in NAMES:
            claim = {"file_text": f"study: {name}", "fingerprint": name, "seed": 7, "holder": name}
            holds[name] = ledgers[name].acquire(name, **claim)
            stack.callback(holds[name].release)
        for name, act in STEPS:
            clock.now += 10
            act(holds[name], lambda number, name=name: TrialKey(study=name, dataset="digits", number=number))
        return {name: told(ledgers[name], name) for name in NAMES}


def told(ledger: Ledger, name: str) -> dict[str, Any]:
    """Return everything that a ledger says of a study, but for the numbers of rows, which a database shares."""

    def rows(found: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in asdict(row).items() if k != "rowid"} for row in found]

    study = ledger.study(name)
    assert study is not None
    return {
        "study": asdict(study),
        "trials": rows(ledger.trials(name)),
        "changed": rows(ledger.trials_since(name, 0)),
        "changed later": rows(ledger.trials_since(name, study.revision - 3)),
        "reports": rows(ledger.reports(name)),
        "in order": rows(ledger.reports_since(name, 0)),
        "of one trial": rows(ledger.reports(name, "digits", 0)),
        "notes": rows(ledger.events(name)),
        "counts": ledger.counts(name),
    }


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What two ledgers say, one for each study."""
    clock = Clock()
    with ExitStack() as stack:
        places: dict[str, Path] = {name: tmp_path_factory.mktemp(name) / "ledger.sqlite" for name in NAMES}
        ledgers = {
            n: stack.enter_context(Ledger.open(f"sqlite:///{p}", clock=clock, monotonic=clock))
            for n, p in places.items()
        }
        yield play(ledgers, clock)


def test_neither_sees_or_changes_anything_of_the_other(storage: str, alone: dict[str, Any]) -> None:
    clock = Clock()
    with Ledger.open(storage, clock=clock, monotonic=clock) as shared:
        found = play(dict.fromkeys(NAMES, shared), clock)
    assert found == alone
    assert found["a"]["study"]["held_until"] is None
    assert found["b"]["study"]["held_until"] is not None, "one's release is not the other's"
    assert len(found["a"]["reports"]) == 4
