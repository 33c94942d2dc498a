"""The MLflow tracker: one parent run per data set and one child per trial, a function of the study's ledger."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ablate.base.errors import StaleDriverError
from ablate.base.files import Place
from ablate.base.redaction import redact_url
from ablate.core.trial import TrialConfig, TrialKey, TrialState, place_of
from ablate.ledger import Ledger, StudyRecord, StudyWriter, TrialRecord, counted_reports
from ablate.study import Study
from ablate.tracking import candidates, contents
from ablate.tracking.address import artifact_root, default_uri, environment_tags
from ablate.tracking.artifacts import Artifacts
from ablate.tracking.store import PARENT, Run, Store, elsewhere, is_refusal, open_store, require_mlflow
from ablate.tracking.tracker import WriteFiles, attempt
from ablate.tracking.view import experiment_tags

MORE = 1.1  # times as many ended trials until ranks are shown again, so that a long study costs about 10 times its runs


class MlflowView:
    """Each sync writes the trials that changed since the last one to their runs. It stores nothing itself.

    The first sync, and one after an error, finds the study's runs by their tags in one search. A run that shows the
    state and the attempt of an ended trial is skipped. Any other is written whole: points that carry the ledger's times
    change nothing when they are written again.
    """

    def __init__(
        self,
        _name: str = "mlflow",
        *,
        uri: str | None,
        study: Study,
        ledger: Ledger,
        writer: StudyWriter | None,
        home: Path,
        store: Place | None = None,
    ) -> None:
        self.uri = uri or default_uri(home.parent)
        self.label = f"MLflow {redact_url(self.uri)}"
        require_mlflow(self.uri)
        self._study, self._ledger, self._writer, self._folder = study, ledger, writer, home.parent
        self._artifacts = Artifacts(self.label, store or home, self.uri)
        self._environment: dict[str, str] = {}
        self._store: Store | None = None
        self._revision = -1
        self._owed: dict[TrialKey, TrialRecord] = {}
        self._arms: dict[int, dict[str, str]] = {}
        self._events = 0
        self._unranked: set[str] = set()  # data sets in which trials have ended since their ranks were shown
        self._ranked: dict[str, int] = {}

    def sync(self) -> None:
        """Show every change since the last call; a trial that MLflow refuses keeps no other waiting."""
        self._advance(ending=False)

    def log_models(self, configs: Sequence[TrialConfig], *, write: WriteFiles) -> None:
        """Remember which trials get weights and settings as artifacts `model/` of their runs; `close` sends them."""
        self._artifacts.models |= {config.key: (config, write) for config in configs}

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Remember files and folders for every parent run; `close` sends them."""
        self._artifacts.files |= {path.name: path for path in paths if path.exists()}

    def close(self) -> Sequence[str]:
        """Sync, send files, and leave no run as RUNNING: trials that will continue, and parents, become SCHEDULED."""
        return self._advance(ending=True)

    def _advance(self, *, ending: bool) -> Sequence[str]:
        record = self._ledger.study(self._study.name)
        if record is None:
            return ()
        store, self._store = self._store or self._open(record), None  # an error below leaves None: it is opened anew
        for trial in self._ledger.trials_since(record.name, self._revision):
            self._owed[trial.key] = trial
            self._revision = max(self._revision, trial.revision)
        self._unranked |= {trial.key.dataset for trial in self._owed.values() if trial.state.finished}
        changed = {key.dataset for key in self._owed}
        self._show_campaign(store, record)
        refused: Exception | None = None
        for key, trial in sorted(self._owed.items()):
            _, error = attempt(partial(self._show, store, record, trial))
            if error is None:
                del self._owed[key]
            elif is_refusal(error):
                refused = error
            else:
                raise error
        for dataset in sorted({dataset for dataset, _ in store.runs} if ending else changed):
            self._show_parent(store, record, dataset, ending=ending)
        lines = self._end(store) if ending else ()
        if refused is not None:
            raise refused
        self._store = store
        return lines

    def _open(self, record: StudyRecord) -> Store:
        named = {trial.mlflow_run_id for trial in self._ledger.trials(record.name) if trial.mlflow_run_id}
        identity = contents.study_id(record)
        store = open_store(self.uri, experiment=record.name, study_id=identity, named=named, folder=self._folder)
        store.describe(experiment_tags(self._study))
        if elsewhere(store.artifacts, artifact_root(self.uri, self._folder)):
            self._artifacts.refuse(
                f"this machine lacks their folder or may not write there ({store.artifacts}). A server takes them with"
                " --serve-artifacts --artifacts-destination FOLDER, for a study of another name"
            )
        self._environment = self._environment or environment_tags()
        return store

    def _show(self, store: Store, record: StudyRecord, trial: TrialRecord) -> None:
        """Make a trial's run equal to the ledger: points, the output if it failed, tags, then the status."""
        if trial.attempt == 0 and not trial.state.finished:
            return  # not started: nothing to show
        key, parent = trial.key, self._parent(store, record, trial.key.dataset)
        run = self._run(store, record, trial, parent)
        status, tags = contents.STATUS[trial.state], contents.changing_tags(trial)
        shown = {PARENT: parent.run_id} | {name: tags[name] for name in ("ablate.state", "ablate.attempt")}
        is_shown = run.status == status and shown.items() <= run.tags.items()
        if run.deleted or (is_shown and trial.state.finished):
            return
        is_continued = run.tags.get("ablate.attempt") == str(trial.attempt) and run.epoch <= trial.epochs_done
        after = run.epoch if is_continued else 0
        reports = self._ledger.reports(key.study, key.dataset, key.number, after=after)
        points = [*(() if after else contents.size_points(trial)), *contents.report_points(reports)]
        if trial.config.best is not None and trial.state.finished:
            every = self._ledger.reports(key.study, key.dataset, key.number)
            points += contents.counted_points(trial, every)
        self._pool(store, trial)
        if trial.state is TrialState.FAIL:
            self._artifacts.send_output(store, trial.config)
        end = contents.milliseconds(trial.finished_at or 0.0) if trial.state.finished else None
        tags |= {**self._arm(trial), PARENT: parent.run_id}
        parameters = contents.trial_parameters(trial.config)
        store.put(run, points=points, parameters=parameters, tags=tags, status=status, end=end)
        run.epoch = reports[-1].epoch if reports else after

    def _run(self, store: Store, record: StudyRecord, trial: TrialRecord, parent: Run) -> Run:
        """Return a trial's run, which is made if there is none, and note it in the ledger, for links.

        A driver that lost the study deletes the run that it has made.
        """
        where = (trial.key.dataset, trial.key.number)
        found = store.runs.get(where)
        run = found or store.create(
            name=contents.run_name(trial.config, several=len(self._study.datasets) > 1),
            start=contents.milliseconds(trial.started_at or trial.created_at),
            tags={**contents.trial_tags(trial, record), PARENT: parent.run_id, **self._environment},
        )
        if self._writer is not None and trial.mlflow_run_id != run.run_id:
            try:
                self._writer.set_mlflow_run(trial.key, run.run_id)
            except StaleDriverError:
                if found is None:
                    store.client.delete_run(run.run_id)
                raise
        return store.runs.setdefault(where, run)

    def _pool(self, store: Store, trial: TrialRecord) -> None:
        """Show the means over all seeds of a network in the run of its first trial, if it has several trials."""
        if trial.state is not TrialState.COMPLETE or trial.config.source is None:
            return
        same = contents.network(trial.config)
        of_set = self._ledger.trials(trial.key.study, trial.key.dataset)
        own = [t for t in of_set if contents.network(t.config) == same and t.state is not TrialState.WAITING]
        complete = [t for t in own if t.state is TrialState.COMPLETE]
        run = store.runs.get((own[0].key.dataset, own[0].key.number))
        if len(complete) < 2 or own[0] is not complete[0] or run is None:
            return
        reports = [self._ledger.reports(t.key.study, t.key.dataset, t.key.number) for t in complete]
        counted = [r for t, rows in zip(complete, reports, strict=True) for r in counted_reports(t.config, rows)]
        store.put(run, points=contents.pooled_points(complete, counted))

    def _parent(self, store: Store, record: StudyRecord, dataset: str) -> Run:
        """Return the parent run of a data set, which is made if there is none."""
        if (dataset, None) not in store.runs:
            store.runs[dataset, None] = store.create(
                name=f"{record.name} {dataset}",
                start=contents.milliseconds(record.created_at),
                tags={**contents.study_tags(record, dataset), **self._environment},
            )
        return store.runs[dataset, None]

    def _show_parent(self, store: Store, record: StudyRecord, dataset: str, *, ending: bool) -> None:
        """Show a data set's settings, its trials by state, their ranks, and whether any of them runs."""
        run = store.runs.get((dataset, None))
        if run is None:
            return
        counts = self._ledger.counts(record.name).get(dataset, {})
        ended = sum(count for state, count in counts.items() if state.finished)
        if dataset in self._unranked and (ending or ended >= MORE * self._ranked.get(dataset, 0)):
            self._show_ranks(store, dataset)
            self._unranked.discard(dataset)
            self._ranked[dataset] = ended
        status, end = "SCHEDULED" if ending else "RUNNING" if TrialState.RUNNING in counts else None, None
        if ending and all(state.finished for state in counts):
            ends = [trial.finished_at or 0.0 for trial in self._ledger.trials(record.name, dataset)]
            status, end = "FINISHED", contents.milliseconds(max(ends, default=record.created_at))
        states = {f"ablate.trials.{state.lower()}": str(counts.get(state, 0)) for state in TrialState}
        parameters = contents.study_parameters(self._study, dataset)
        tags = {**contents.study_note(self._study), **states}
        store.put(run, parameters=parameters, tags=tags, status=status, end=end)

    def _show_ranks(self, store: Store, dataset: str) -> None:
        study, trials = self._study, self._ledger.trials(self._study.name, dataset)
        for key, point in contents.rank_points(study, trials, self._ledger.reports(study.name, dataset)).items():
            run = store.runs.get((dataset, key.number))
            if run is not None and run.rank != point.value:
                store.put(run, points=[point])
                run.rank = point.value

    def _show_campaign(self, store: Store, record: StudyRecord) -> None:
        """Show what was decided of a campaign's candidates: in their runs, and as charts in the parent."""
        events = [] if self._study.campaign is None else self._ledger.events(record.name)
        if self._study.campaign is None or len(events) == self._events:
            return
        self._arms = candidates.candidate_tags(events)
        for trial in self._ledger.trials(record.name):
            run = store.runs.get((trial.key.dataset, trial.key.number))
            if run is not None:
                store.put(run, tags=self._arm(trial))
        points = candidates.parent_points(self._study.campaign, events)
        parent = self._parent(store, record, self._study.labels[0])
        store.put(parent, points=points, tags=candidates.parent_tags(events))
        self._events = len(events)

    def _arm(self, trial: TrialRecord) -> dict[str, str]:
        number = place_of(trial.sampler_state)
        return {} if number is None else self._arms.get(number, {})

    def _end(self, store: Store) -> Sequence[str]:
        """Send files; end what is still RUNNING, and delete runs of a driver that lost the study."""
        lines = self._artifacts.send(store)
        known = {run.run_id: run for run in store.runs.values()}
        for run in store.running():
            if run.run_id in known:
                store.put(known[run.run_id], status="SCHEDULED")
            else:
                store.client.delete_run(run.run_id)
        return lines
