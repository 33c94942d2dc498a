"""Resumes a study: checks its file, reads its state from the ledger, says what continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ablate.base.errors import LedgerHeldError, StudyMismatchError
from ablate.base.plain_text import counted
from ablate.core.trial import TrialKey
from ablate.ledger import EventRecord, Ledger, ReportRecord, StudyWriter, TrialRecord
from ablate.ledger.requests import REQUESTED
from ablate.study import Study, difference, parse_study
from ablate.study.tuning_seeds import is_tuned_alike
from ablate.tuning.state.trial_progress import DRIVER_STARTED

LISTED = 5  # trials named one by one
LONGEST_WAIT = 90.0  # the longest lease, in seconds, that is waited for
POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """The state of a study in the ledger when a driver resumes it.

    `begun` are the unfinished trials that were handed out before, with the epoch from which each continues. `waiting`
    counts the unfinished trials that never were. `unit` is the study's word for an epoch. `last_at` is the time of the
    last commit (UTC epoch seconds).
    """

    study: str
    unit: str
    trials: int
    finished: int
    waiting: int
    begun: tuple[tuple[TrialKey, int], ...]
    last_at: float
    last_holder: str | None


Ask = Callable[[tuple[object, ...] | None], StudyWriter]
"""Requests the lease of a study; its argument is the mark of a lease that was not renewed in time, or None."""


def acquire_when_free(
    ask: Ask,
    say: Callable[[str], None],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StudyWriter:
    """Return what `ask` returns, waiting for the lease of another driver to end; raise LedgerHeldError.

    A killed driver on another machine looks alive until it fails to renew its lease, and a retry on a new cluster must
    not fail because of it. So the lease is watched for its whole length, by the clock of this process alone. Raises
    LedgerHeldError at once if the driver renews its lease or runs on this machine.
    """
    watched: LedgerHeldError | None = None
    since = monotonic()
    while True:
        waited = monotonic() - since
        try:
            writer = ask(watched.mark if watched is not None and waited >= watched.lease_seconds else None)
        except LedgerHeldError as error:
            if error.here or error.lease_seconds > LONGEST_WAIT or (watched and error.mark != watched.mark):
                raise
            if watched is None:
                watched, since = error, monotonic()
                say(f"{error}. It may be gone: waiting {error.lease_seconds:.0f} s to see whether it renews its lease.")
        else:
            if watched is not None:
                say("It did not renew its lease: this driver continues.")
            return writer
        sleep(POLL_SECONDS)


def refuse_other_study(ledger: Ledger, study: Study, text: str, *, extend: bool) -> None:
    """Raise StudyMismatchError, with the difference, if the trials of this name belong to another study.

    A study in which no trial has reported may change freely, and test metrics of a command may follow until one is
    read. With `extend` a study may ask for more than it began with: trials, time, wider ranges of a search,
    confirmation seeds, seeds of a comparison, or other runs of a campaign's candidates.
    """
    record = ledger.study(study.name)
    if record is None or not ledger.last_report(study.name):
        return  # without a report there is nothing to compare with
    trials = ledger.trials(study.name)
    before = parse_study(record.file_text, "ledger", known_good=True)
    changed = "\n".join(f"  {line}" for line in difference(record.file_text, text))
    opened = before.opens_test or before.closes_on_test
    old, new = (before, study) if opened else (before.untested(), study.untested())
    is_wider = new.widens(old)
    if old.fingerprint() != new.fingerprint() and not is_wider:
        advice = [*_advice(before, study), "Give the new study another name (study: …), or put these settings back."]
        raise StudyMismatchError(
            f"study {study.name!r} exists, and this file would make its trials incomparable:\n"
            + "\n".join([changed, *advice])
        )
    if not is_tuned_alike(before, study):
        raise StudyMismatchError(
            f"study {study.name!r} exists, and with this tune.replicates its seeds would have been trained with the"
            f" best values of other tuning seeds:\n{changed}\nPut it back, or give the study another name (study: …)."
        )
    if fewer := _fewer_seeds(before, study, trials):
        raise StudyMismatchError(
            f"study {study.name!r} exists with more seeds than this file asks for:\n{changed}\n{fewer}"
        )
    asked = {
        "range": is_wider,
        "budget": before.budget != study.budget,
        "confirmation": before.confirm != study.confirm,
        "number of seeds": before.replicates != study.replicates,
        "effort or number of runs for a candidate": _effort(before) != _effort(study),
    }
    other = [name for name, differs in asked.items() if differs]
    if other and not extend:
        raise StudyMismatchError(
            f"study {study.name!r} exists with another {' and another '.join(other)}:\n{changed}\n"
            "Type --extend to go on with the new one, or put these settings back."
        )


def begins_afresh(ledger: Ledger, study: Study) -> bool:
    """Return whether a study has other settings than before, and no trial has reported: its trials are replaced."""
    record = ledger.study(study.name)
    if record is None or ledger.last_report(study.name):
        return False
    before = parse_study(record.file_text, "ledger", known_good=True)
    return any(getattr(before, name) != getattr(study, name) for name in ("seed", "replicates", "tune")) or (
        before.fingerprint() != study.fingerprint()
    )


def _effort(study: Study) -> tuple[int, str | None] | None:
    return None if study.campaign is None else (study.campaign.runs, study.campaign.effort)


def _advice(before: Study, study: Study) -> Iterator[str]:
    """Yield further advice about settings that cannot change during a study."""
    if any(before.start_of(label) not in ((), study.start_of(label)) for label in before.datasets):
        yield "Your settings were tried first: `start` and defaults of ranges cannot change once a search has begun."
    if before.sampler.name == "grid" and before.space != study.space:
        yield "A grid walks its ranges in one order, so they cannot become wider. Take another sampler."
    if before.replicates != study.replicates:
        yield (
            "A search chooses by its trials' own seeds, so trials with more of them are no match for those before. For "
            "more seeds of what it found, raise confirm.replicates and type --extend."
        )
    if before.deterministic != study.deterministic:
        was, do = "was not deterministic", "Leave it out"
        if before.deterministic is not None:
            was, do = f"had `deterministic: {before.deterministic}`", "Keep it (--deterministic means 8)"
        yield f"The study {was} when its trials were suggested and stopped, and that cannot change midway. {do}."


def _fewer_seeds(before: Study, study: Study, trials: Sequence[TrialRecord]) -> str:
    """Return advice if fewer seeds are requested than have been trained, else an empty text."""
    confirmed = any(trial.config.stage == "confirm" for trial in trials)
    if confirmed and before.confirm and study.confirm and study.confirm.replicates < before.confirm.replicates:
        return "Seeds that are confirmed stay confirmed. Put confirm.replicates back."
    if study.compare is not None and study.replicates < before.replicates:
        return "Seeds that are trained stay in the comparison. Put replicates back."
    return ""


def find(ledger: Ledger, study: Study) -> Found | None:
    """Return the state of a study before this driver adds to it, or None if it has no trial."""
    found = ledger.snapshot(study.name)
    trials, reports = found.trials, found.reports
    if not trials:
        return None
    open_trials = [t for t in trials if not t.state.finished and t.key.dataset in study.labels]
    begun = sorted((t for t in open_trials if t.attempt > 0), key=lambda t: (t.key.number, t.key.dataset))
    last_at, last_holder = _last_commit(trials, reports, found.events)
    return Found(
        study=study.name,
        unit=study.unit,
        trials=len(trials),
        finished=sum(t.state.finished for t in trials),
        waiting=sum(t.attempt == 0 for t in open_trials),
        begun=tuple((t.key, t.epochs_done) for t in begun),
        last_at=last_at,
        last_holder=last_holder,
    )


def start_text(found: Found, *, now: float) -> str:
    """Return a text on what was found and from where trials continue; `now` is in UTC epoch seconds."""
    counts = [f"{_trials(found.trials)} in the ledger"]
    counts.append("all finished" if found.finished == found.trials else f"{found.finished} finished")
    if found.waiting:
        counts.append(f"{found.waiting} waiting for a first start")
    lines = [f"Study {found.study!r} continues: {', '.join(counts)}."]
    if found.begun:
        named = [f"{key.dataset} {key.number} from {found.unit} {epoch}" for key, epoch in found.begun]
        one = len(named) == 1
        lines.append(f"{_trials(len(named))} {'was' if one else 'were'} in training: {_list(named)}.")
    when = datetime.fromtimestamp(found.last_at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    who = found.last_holder or "an earlier driver"
    lines.append(f"The last commit was {_ago(now - found.last_at)} ago ({when}), by {who}.")
    return "\n".join(lines)


def _last_commit(
    trials: Iterable[TrialRecord], reports: Iterable[ReportRecord], events: Sequence[EventRecord]
) -> tuple[float, str | None]:
    """Return the time of the last commit, and its driver if the ledger names it."""
    acts = [(r.driver_term, r.created_at) for r in reports] + [
        (n.driver_term, n.created_at) for n in events if n.kind != REQUESTED
    ]
    for trial in trials:
        acts += [(0, trial.created_at), (0, trial.started_at or 0.0), (trial.driver_term, trial.finished_at or 0.0)]
    last = max(driver for driver, _ in acts)
    holders = [n.payload.get("holder") for n in events if n.kind == DRIVER_STARTED and n.driver_term == last]
    return max(moment for _, moment in acts), next((str(holder) for holder in holders if holder), None)


def _list(named: Sequence[str]) -> str:
    left = len(named) - LISTED
    return ", ".join(named[:LISTED]) + (f" and {left} more" if left > 0 else "")


def _trials(count: int) -> str:
    return f"{count} trial{'s' * (count != 1)}"


def _ago(seconds: float) -> str:
    units = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    size, unit = next((each for each in units if seconds >= each[0]), units[-1])
    return counted(max(int(seconds // size), 0), unit)
