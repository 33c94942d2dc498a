"""A driver that ends before or after any commit of a study continues to the same tables and events."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ablate.ledger import Ledger
from ablate.study import Study
from ablate.tuning import Search
from ablate.tuning.recorded import FROZEN, TEST_OPENED
from support.faults.ledger_dump import Dump, dump, first_difference
from support.searches import ENDLESS, CrashError, hold_of, notes, report_at, search_of, study_of, url_in

SPACE: dict[str, Any] = {
    "model": {"width": {"int": [8, 64], "step": 8}},
    "training": {"epochs": 2, "learning_rate": {"float": [1e-4, 1e-1], "log": True}},
    "datasets": {"digits": {}, "more": {"task": "digits"}},
    "budget": {"trials": 3},
}
COMPARED: dict[str, Any] = {
    "model": {"depth": 1},
    "training": {"epochs": 2},
    "variants": [{"name": "a", "model": {"width": 8}}, {"name": "b", "model": {"width": 16}}],
    "compare": {"baseline": "a"},
    "objectives": [{"metric": "val_accuracy", "direction": "maximize"}],
    "datasets": {"digits": {}, "more": {"task": "digits"}},
}
STUDIES = {"search": SPACE | {"confirm": {"replicates": 2, "top": 2}}, "compared": COMPARED}


def drive(folder: Path, study: Study, *, ends: int | None = None, after: bool = False) -> int:
    """Run a study until it is finished, or until it ends before or after commit `ends`; return the commits done."""
    count = 0
    with Ledger.open(url_in(folder)) as ledger:
        writer = hold_of(study, ledger)
        write = writer._write

        def guarded(*arguments: Any) -> Any:
            nonlocal count
            if count == ends and not after:
                raise CrashError
            answer = write(*arguments)
            count += 1
            if after and count - 1 == ends:
                raise CrashError
            return answer

        writer._write = guarded  # type: ignore[method-assign]
        try:
            search = search_of(study, writer, ledger, patience=ENDLESS)
            while (config := search.next_trial()) is not None:
                train(search, config)
            assert search.finished
        except CrashError:
            writer._lost = True  # a killed process releases nothing
        finally:
            writer.release()
    return count


def train(search: Search, config: Any) -> None:
    if config.key.number == 1 and config.stage == "search":
        search.fail(config.key, "its process died", kind="died" if search.attempt(config.key) == 1 else "trial")
        return
    for epoch in range(1, config.epochs + 1):
        search.report(config.key, report_at(config, epoch))


def tables(folder: Path) -> Dump:
    with Ledger.open(url_in(folder)) as ledger:
        return dump(ledger, ordered=False)  # two data sets: their events come in any order


@pytest.mark.parametrize("name", STUDIES)
def test_every_end_of_the_process_leads_to_the_same_tables_and_events(tmp_path: Path, name: str) -> None:
    study = study_of(**STUDIES[name])
    (calm := tmp_path / "calm").mkdir()
    commits = drive(calm, study)
    for ends, after in itertools.product(range(commits), (False, True)):
        folder = tmp_path / f"{ends}-{after}"
        folder.mkdir()
        drive(folder, study, ends=ends, after=after)
        drive(folder, study)
        assert not first_difference(tables(calm), tables(folder)), f"commit {ends} of {commits}, after: {after}"
        for kind in (FROZEN, TEST_OPENED):
            assert sorted(dataset or "" for dataset, _ in notes(folder, kind)) == ["digits", "more"]
