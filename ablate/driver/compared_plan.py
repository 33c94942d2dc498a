"""The plan of a comparison, noted before its results; the rows that a command asks for, and those that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ablate.base.errors import RequestError, StudyFailedError, did_you_mean
from ablate.core.trial import TrialState
from ablate.ledger import Ledger, Snapshot, StudyWriter
from ablate.results.statistics.looks import PLAN, last_plan, plan_of
from ablate.study import VARIANT, Study


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


def refuse_failed_rows(study: Study, snapshot: Snapshot, report: Path, *, only: Sequence[str] | None) -> None:
    """Raise StudyFailedError if a row of a comparison failed, or lacks seeds; one that diverged is a result."""
    if study.compare is None:
        return
    diverged = {each.key for each in snapshot.reports if each.diverged}
    rows = [t for t in snapshot.trials if t.config.stage != "tune" and (only is None or t.config.variant in only)]
    failed = [trial for trial in rows if trial.state is TrialState.FAIL and trial.key not in diverged]
    planned = {str(parameters[VARIANT]) for label in study.labels for parameters in study.design(label)}
    lacks: Counter[str] = Counter()  # seeds of tuned rows without a winner
    for config in (trial.config for trial in rows if trial.config.stage == "search" and study.tune is not None):
        lacks[str(config.variant)] += study.replicates * (config.source is None) - len(config.seeds)
    asked = planned if only is None else planned & {*only}
    untrained = (asked - {str(t.config.variant) for t in rows}) | (+lacks).keys()
    lacking = sorted({str(t.config.variant) for t in failed} | untrained)
    if lacking:
        said = f" The last one said: {failed[-1].error}" if failed else ""
        raise StudyFailedError(f"study {study.name!r}: {', '.join(lacking)} failed, see {report.absolute()}.{said}")
