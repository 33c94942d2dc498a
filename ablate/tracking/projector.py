"""Keeps a study's MLflow runs equal to its ledger: one parent run per data set, one child per trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ablate.base.errors import LedgerError, StaleDriverError
from ablate.core.trial import OUTPUT, TrialConfig, TrialKey, TrialState, place_of
from ablate.ledger import Ledger, StudyRecord, StudyWriter, TrialRecord, counted_reports
from ablate.study import Study
from ablate.tracking import candidates, contents
from ablate.tracking.store import RefusedError, Run, Store

log = logging.getLogger(__name__)
PROJECTED = "ablate.projected"
REVISION = "ablate.revision"
RANKED = "ablate.ranked"  # tag of a parent: step and time of the ranks that were shown last
MORE = 1.1  # times as many ended trials until ranks are shown again, so that a long study costs about 10 times its runs


@dataclass(kw_only=True)
class _Shown:
    """The known state of a trial or a parent in the store; `mark` identifies what was shown last."""

    run_id: str
    status: str
    new: bool
    mark: str = ""
    epoch: int = 0
    events: int = 0
    ranked: str = ""
    deleted: bool = False


class Projector:
    """Updates the store to the ledger, one committed step at a time.

    After a kill at any point, a new projector continues. It finds a run by the id in the ledger, otherwise by its tags,
    and otherwise creates it. Metrics carry the ledger's times, so that writing them again changes nothing. A parent's
    tag `ablate.revision` is the ledger revision up to which all finished trials of its data set have been shown. The
    run of a trial that failed gets its `output`, as the file OUTPUT.
    """

    def __init__(
        self,
        *,
        store: Store,
        study: Study,
        ledger: Ledger,
        writer: StudyWriter | None,
        environment: Mapping[str, str],
        output: Callable[[TrialConfig], str] = lambda config: "",
    ) -> None:
        self._store = store
        self._study = study
        self._ledger = ledger
        self._writer = writer
        self._environment = dict(environment)
        self._output = output
        self._revision = -1
        self._owed: dict[TrialKey, TrialRecord] = {}
        self._parents: dict[str, _Shown] = {}
        self._trials: dict[TrialKey, _Shown] = {}
        self._unsure: set[TrialKey] = set()
        self._finished: set[str] = set()
        self._candidates: dict[int, dict[str, str]] = {}

    def advance(self) -> None:
        """Show every change since the last call.

        If the store refuses a trial, the others are still shown. RefusedError is raised after them, and the next call
        tries the trial again.
        """
        record = self._ledger.study(self._study.name)
        if record is None:
            return
        self._collect(record)
        refused: RefusedError | None = None
        try:
            self._show_candidates(record)
        except RefusedError as error:
            refused = error
        for key in sorted(self._owed):
            try:
                self._show(self._owed[key], record)
                del self._owed[key]
            except RefusedError as error:
                self._trials.pop(key, None)
                self._unsure.add(key)
                refused = error
        if refused is not None:
            raise refused
        self._mark_revision()

    def end(self) -> None:
        """Leave no run as RUNNING: trials that will continue, and their parents, become SCHEDULED."""
        study = self._ledger.study(self._study.name)
        if study is None or self._revision < 0:
            return
        for shown in self._trials.values():
            if shown.status == "RUNNING":
                self._set_status(shown, "SCHEDULED", None)
        counts = self._ledger.counts(study.name)
        for dataset, parent in self._parents.items():
            self._show_ranks(dataset)
            if all(state.finished for state in counts.get(dataset, {})):
                ends = [trial.finished_at or 0.0 for trial in self._ledger.trials(study.name, dataset)]
                self._set_status(parent, "FINISHED", contents.milliseconds(max(ends, default=study.created_at)))
            else:
                self._set_status(parent, "SCHEDULED", None)
        for orphan in self._store.find({"ablate.study_id": contents.study_id(study)}, status="RUNNING"):
            self._store.delete(orphan.run_id)  # of a driver that lost the study: the ledger names another run

    def run_id(self, key: TrialKey) -> str | None:
        """Return the run of a trial, or None if it does not exist yet or the user deleted it."""
        trials = [] if key in self._trials else self._ledger.trials(self._study.name, key.dataset)
        return self._run_id_of(next((trial for trial in trials if trial.key == key), None), key)

    def _run_id_of(self, trial: TrialRecord | None, key: TrialKey) -> str | None:
        if key not in self._trials:
            recorded = None if trial is None else trial.mlflow_run_id
            run = self._store.get(recorded) if recorded is not None else None
            if run is None:
                return None
            self._trials[key] = _known(run)
        shown = self._trials[key]
        return None if shown.deleted else shown.run_id

    def parent_ids(self) -> list[str]:
        """Return the parent runs of the study's data sets."""
        return [parent.run_id for parent in self._parents.values() if not parent.deleted]

    def _collect(self, study: StudyRecord) -> None:
        if self._revision < 0:
            self._start(study)
            return
        for trial in self._ledger.trials_since(study.name, self._revision):
            self._owed[trial.key] = trial
            self._revision = max(self._revision, trial.revision)

    def _start(self, study: StudyRecord) -> None:
        trials = self._ledger.trials(study.name)
        shown_to: dict[str, int] = {}
        for dataset in sorted({trial.key.dataset for trial in trials}):
            parent = self._parent(dataset, study)
            known = int(parent.mark) if parent.mark.isdigit() else -1
            shown_to[dataset] = known if known <= study.revision else -1  # the ledger may be an older copy
            if not parent.new:
                self._unsure |= {trial.key for trial in trials if trial.key.dataset == dataset}
        for trial in trials:
            if not trial.state.finished or trial.revision > shown_to[trial.key.dataset]:
                self._owed[trial.key] = trial
        self._revision = max((trial.revision for trial in trials), default=0)

    def _show_candidates(self, study: StudyRecord) -> None:
        """Show what was decided of a campaign's candidates: in their runs, and as charts in the parent."""
        campaign = self._study.campaign
        events = [] if campaign is None else self._ledger.events(study.name)
        if campaign is None or not events:
            return
        parent = self._parent(self._study.labels[0], study)
        shown = events[: parent.events] if parent.events <= len(events) else []  # the ledger may be an older copy
        if self._candidates and len(shown) == len(events):
            return
        before, self._candidates = candidates.candidate_tags(shown) if shown else {}, candidates.candidate_tags(events)
        changed = {number: tags for number, tags in self._candidates.items() if tags != before.get(number)}
        for trial in self._ledger.trials(study.name) if changed else ():
            number = place_of(trial.sampler_state)
            if number in changed and (run_id := self._run_id_of(trial, trial.key)) is not None:
                try:
                    self._store.log(run_id, tags=changed[number])
                except RefusedError:  # perhaps a user deleted the run: it is looked up again before it is written to
                    self._trials.pop(trial.key, None)
                    self._unsure.add(trial.key)
        if not parent.deleted:
            points = candidates.parent_points(campaign, events)[len(candidates.parent_points(campaign, shown)) :]
            self._store.log(parent.run_id, points=points, tags=candidates.parent_tags(events))
        parent.events = len(events)

    def _tags_of_arm(self, trial: TrialRecord) -> dict[str, str]:
        number = place_of(trial.sampler_state)
        return {} if number is None else self._candidates.get(number, {})

    def _show(self, trial: TrialRecord, study: StudyRecord) -> None:
        if trial.attempt == 0 and not trial.state.finished:
            return  # not started: nothing to show
        parent = self._parent(trial.key.dataset, study)
        shown = self._trials.get(trial.key) or self._run_of(trial, study, parent)
        if trial.mlflow_run_id != shown.run_id:
            self._record(shown, lambda writer: writer.set_mlflow_run(trial.key, shown.run_id))
        if trial.state.finished:
            self._finished.add(trial.key.dataset)
        mark = f"{trial.state}/{trial.attempt}/{trial.epochs_done}"
        status = contents.STATUS[trial.state]
        if shown.deleted or (shown.mark, shown.status) == (mark, status):
            return
        if trial.state is TrialState.FAIL and (text := self._output(trial.config)):
            self._store.attach_text(shown.run_id, OUTPUT, text)
        self._write(trial, shown, mark)
        over = trial.finished_at if trial.state.finished else None
        self._set_status(shown, status, None if over is None else contents.milliseconds(over))
        if trial.state is TrialState.COMPLETE and trial.config.source is not None:
            self._pool(trial)
        if status == "RUNNING":
            self._set_status(parent, "RUNNING", None)

    def _write(self, trial: TrialRecord, shown: _Shown, mark: str) -> None:
        key = trial.key
        known = min(shown.epoch, trial.epochs_done)  # of a trial that was reopened, its last report is gone
        reports = self._ledger.reports(key.study, key.dataset, key.number, after=known)
        points = contents.report_points(reports)
        if trial.config.best is not None and trial.state.finished:
            every = self._ledger.reports(key.study, key.dataset, key.number)
            points += contents.counted_points(trial, every)
        first = shown.mark == ""
        self._store.log(
            shown.run_id,
            points=[*contents.size_points(trial), *points] if first else points,
            parameters=contents.trial_parameters(trial.config) if first else {},
            tags={**contents.changing_tags(trial), PROJECTED: mark},
        )
        shown.epoch = reports[-1].epoch if reports else known
        shown.mark = mark

    def _pool(self, trial: TrialRecord) -> None:
        """Show the means over all seeds of a network in the run of its first trial, if it has several trials."""
        same = contents.network(trial.config)
        of_set = self._ledger.trials(trial.key.study, trial.key.dataset)
        own = [t for t in of_set if contents.network(t.config) == same and t.state is not TrialState.WAITING]
        complete = [t for t in own if t.state is TrialState.COMPLETE]
        run_id = self.run_id(own[0].key)
        if len(complete) < 2 or own[0] is not complete[0] or run_id is None:
            return
        reports = [self._ledger.reports(t.key.study, t.key.dataset, t.key.number) for t in complete]
        counted = [r for t, rows in zip(complete, reports, strict=True) for r in counted_reports(t.config, rows)]
        self._store.log(run_id, points=contents.pooled_points(complete, counted))

    def _run_of(self, trial: TrialRecord, study: StudyRecord, parent: _Shown) -> _Shown:
        tags, where = contents.trial_tags(trial, study), contents.trial_identity(trial, study)
        found = self._existing(where, trial.mlflow_run_id) if trial.key in self._unsure else None
        if found is not None:
            shown = _known(found)
            if not found.deleted and (of_arm := self._tags_of_arm(trial)):
                self._store.log(found.run_id, tags=of_arm)
        else:
            self._unsure.add(trial.key)  # until `create` has returned
            start = contents.milliseconds(trial.started_at or trial.created_at)
            fixed = {**tags, **self._tags_of_arm(trial), "mlflow.parentRunId": parent.run_id, **self._environment}
            name = contents.run_name(trial.config, several=len(self._study.datasets) > 1)
            made = self._store.create(name=name, start=start, tags=fixed)
            shown = _Shown(run_id=made.run_id, status=made.status, new=True)
        self._unsure.discard(trial.key)
        self._trials[trial.key] = shown
        return shown

    def _parent(self, dataset: str, study: StudyRecord) -> _Shown:
        if dataset in self._parents:
            return self._parents[dataset]
        tags = contents.study_tags(study, dataset)
        where = {name: tags[name] for name in ("ablate.study_id", "ablate.dataset", "ablate.kind")}
        recorded = self._ledger.mlflow_parents(study.name).get(dataset)
        found = self._existing(where, recorded)
        run = found or self._store.create(
            name=f"{study.name} {dataset}",
            start=contents.milliseconds(study.created_at),
            tags={**tags, **self._environment},
        )
        shown = _Shown(run_id=run.run_id, status=run.status, new=found is None, deleted=run.deleted)
        shown.mark, events = run.tags.get(REVISION, ""), run.tags.get(candidates.EVENTS, "")
        shown.events = int(events) if events.isdigit() else 0
        shown.ranked = run.tags.get(RANKED, "")
        if not shown.deleted:
            said = contents.study_parameters(self._study, dataset)
            missing = {name: value for name, value in said.items() if name not in run.parameters}
            self._store.log(shown.run_id, parameters=missing, tags=contents.study_note(self._study))
        self._parents[dataset] = shown
        if run.run_id != recorded:
            self._record(shown, lambda writer: writer.set_mlflow_parent(dataset, run.run_id))
        return shown

    def _existing(self, where: Mapping[str, str], recorded: str | None) -> Run | None:
        run = self._store.get(recorded) if recorded is not None else None
        if run is not None:
            return run
        found = self._store.find(where)
        for twin in found[1:]:  # a driver that lost the study may have died before it could delete its run
            self._store.delete(twin.run_id)
        return found[0] if found else None

    def _record(self, shown: _Shown, write: Callable[[StudyWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            write(self._writer)
        except StaleDriverError:
            if shown.new:
                self._store.delete(shown.run_id)
            raise
        except LedgerError as error:  # a released lease; the run is found by its tags instead
            log.debug("the MLflow run %s was not recorded: %s", shown.run_id, error)

    def _mark_revision(self) -> None:
        if not self._finished:
            return
        counts = self._ledger.counts(self._study.name)
        for dataset in sorted(self._finished):
            parent = self._parents[dataset]
            here = counts.get(dataset, {})
            states = {f"ablate.trials.{state.lower()}": str(here.get(state, 0)) for state in TrialState}
            ended = sum(count for state, count in here.items() if state.finished)
            if ended >= MORE * float(parent.ranked.partition("/")[0] or 0):
                self._show_ranks(dataset)
            if not parent.deleted:
                self._store.log(parent.run_id, tags={**states, REVISION: str(self._revision)})
            self._finished.discard(dataset)

    def _show_ranks(self, dataset: str) -> None:
        """Show the place of each ended trial of a data set, if others have ended since the last time."""
        parent, trials = self._parents[dataset], self._ledger.trials(self._study.name, dataset)
        ranks = contents.rank_points(self._study, trials, self._ledger.reports(self._study.name, dataset))
        mark = "".join({f"{point.step}/{point.timestamp}" for point in ranks.values()})
        if mark == parent.ranked or parent.deleted:
            return
        for trial in trials:
            if trial.key in ranks and (run_id := self._run_id_of(trial, trial.key)) is not None:
                with suppress(RefusedError):  # a user deleted the run meanwhile
                    self._store.log(run_id, points=[ranks[trial.key]])
        parent.ranked = mark
        self._store.log(parent.run_id, tags={RANKED: mark})

    def _set_status(self, shown: _Shown, status: str, end: int | None) -> None:
        if not shown.deleted and shown.status != status:
            self._store.set_status(shown.run_id, status, end)
            shown.status = status


def _known(run: Run) -> _Shown:
    mark = run.tags.get(PROJECTED, "")
    epoch = mark.rpartition("/")[2]
    return _Shown(
        run_id=run.run_id,
        status=run.status,
        new=False,
        mark=mark,
        epoch=int(epoch) if epoch.isdigit() else 0,
        deleted=run.deleted,
    )
