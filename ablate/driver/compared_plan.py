"""What a comparison plans: its margins and seeds, noted before the results, and the rows that a command asks for."""

from __future__ import annotations

from collections.abc import Iterable

from ablate.base.errors import RequestError, did_you_mean
from ablate.ledger import Ledger, StudyWriter
from ablate.results.statistics.looks import PLAN, last_plan, plan_of
from ablate.study import Study


def note_plan(writer: StudyWriter, ledger: Ledger, study: Study) -> None:
    """Write an event with the file's margins and seeds and the number of ended trials, if the plan is another."""
    if study.compare is None:
        return
    plan = plan_of(study)
    if plan != last_plan(ledger.events(study.name)):
        ended = sum(trial.state.finished for trial in ledger.trials(study.name))
        writer.note(PLAN, payload=plan | {"ended": ended})


def require_variants(study: Study, names: Iterable[str]) -> None:
    """Raise RequestError if `names` are not rows of a comparison that can be trained by themselves."""
    rows = [row.name for row in study.rows]
    for name in names:
        if study.compare is None or study.tune is not None:
            rule = "is no comparison" if study.compare is None else "tunes its rows, all of them at once"
            raise RequestError(f"--variant {name!r}: study {study.name!r} {rule}. Leave the option out.")
        if name not in rows:
            raise RequestError(f"--variant {name!r}: the comparison has no such row. {did_you_mean(name, rows)}")
