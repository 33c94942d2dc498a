"""Drives one study from its file to its report: create or resume, run, confirm, write the results."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from ablate.analysis.tables import write_study_file
from ablate.config import DatasetFacts
from ablate.driver import resume as resumption
from ablate.driver.cautions import cautions
from ablate.driver.code import note_code, refuse_other_code
from ablate.driver.options import RunOptions
from ablate.driver.progress import ProgressDisplay
from ablate.driver.prometheus import require_free, serve_metrics
from ablate.errors import (
    CheckpointDownError,
    DataError,
    RegistryError,
    RequestError,
    ResourceError,
    StudyFailedError,
    did_you_mean,
)
from ablate.execution import Executor, LocalExecutor, RayExecutor
from ablate.files import Place, copy_into, require_writable
from ablate.functions.source import CODE
from ablate.inspection.studies import results_of, select_networks, write_results
from ablate.ledger import Ledger, StudyWriter
from ablate.locations import homes as places
from ablate.objectives import COST_METRICS, on_test
from ablate.redaction import error_text, redact_url
from ablate.study import Study, parse_study, read_study
from ablate.tracking import TRACKERS, Tracker, build_trackers, sync_periodically
from ablate.trainable import load_trainable
from ablate.trial import TrialState
from ablate.tuning import Search, require_searchable
from ablate.tuning.planned import planned_trials

logger = logging.getLogger("ablate")


@dataclass(frozen=True, kw_only=True)
class FinishedStudy:
    """A study that has run to its end, its home and its report."""

    study: Study
    home: Path
    report: Path


def search(
    file: Path,
    options: RunOptions,
    console: Console,
    *,
    scale: float | None = None,
    only: Sequence[str] | None = None,
    deterministic: bool = False,
    text: str | None = None,
) -> FinishedStudy:
    """Create or resume the study in `file`, and run it to its confirmed front and report.

    `scale`, `only` and `deterministic` become part of the study (docs/compare.md, docs/search.md). If `text` is given,
    it is the study, and `file` is only its name in messages.

    Raises RequestError before anything is started, LedgerError if the lease cannot be acquired, StudyFailedError if no
    trial completed, and KeyboardInterrupt with the signal if it was interrupted (the same command continues the study).
    """
    if text is None:
        study, text = read_study(file, scale=scale, only=only, deterministic=deterministic)
    else:
        study = parse_study(text, str(file))
    with _code_explained(options.home(study.name)):
        facts = check_data(study, options.data_dir)
    measure = load_trainable(study.trainable).measure
    require_searchable(study, measure=measure, facts_of=facts.__getitem__)
    _check_options(options)
    home = options.home(study.name)
    with places.open_study(study.name, options) as ledger:
        resumption.refuse_other_study(ledger, study, text, extend=options.extend)
        files = load_trainable(study.trainable).source_files()
        refuse_other_code(ledger, study.name, files, accepted=options.code_changed)
        options = _place(options, study, ledger)
        executor = make_executor(options, home, options.checkpoint_root(study.name))
        with resumption.acquire_when_free(
            partial(_held, ledger, study, text, options), partial(_say, console)
        ) as writer:
            for place in {home.absolute(), options.checkpoint_root(study.name)}:
                places.mark(place, ledger)
            write_study_file(text, home)
            note_code(writer, ledger, study.name, files)
            found = resumption.find(ledger, study)
            earlier = [] if found is None else [resumption.start_text(found, now=time.time())]
            for line in (*earlier, *(f"Note: {line}" for line in cautions(study, facts))):
                _say(console, line)
            engine = Search(study, writer, ledger, measure=measure, facts_of=facts.__getitem__)
            report, unshown = _run(engine, executor, ledger, writer, options, console)
            if found is not None:
                _say(console, resumption.end_text(found, ledger, engine.returns()))
        console.print(results_of(study, ledger.snapshot(study.name)))
        for line in unshown:
            _say(console, line)
        _refuse_empty(ledger, study)
    return FinishedStudy(study=study, home=home, report=report)


@contextmanager
def _code_explained(home: Path) -> Iterator[None]:
    """Say where the code of a study is that a notebook or a script began; it is never imported unasked."""
    try:
        yield
    except RegistryError as error:
        code = home / CODE
        if not code.is_dir():
            raise
        raise RegistryError(f"{error}. Code of this study is in {code}: to run it, set PYTHONPATH={code}") from error


def _check_options(options: RunOptions) -> None:
    """Raise RequestError or ResourceError for options that cannot be used; nothing is started."""
    for name in options.trackers:
        TRACKERS.load(name)
    require_free(options.metrics_port, host=options.metrics_host)
    check_resources(options)


def _run(
    engine: Search, executor: Executor, ledger: Ledger, writer: StudyWriter, options: RunOptions, console: Console
) -> tuple[Path, Sequence[str]]:
    """Run a study to its end, then write its report and publish it.

    Returns the path of the report page, and lines for the user on what the tracker could not show.
    """
    study, home = engine.study, options.home(engine.study.name)
    tracker = build_trackers(
        options.trackers,
        uri=options.tracking_uri,
        study=study,
        ledger=ledger,
        writer=writer,
        home=home,
        store=options.checkpoint_root(study.name),
    )
    try:
        watched = serve_metrics(engine, options.metrics_port, host=options.metrics_host)
        with sync_periodically(tracker.sync), watched, _progress(study, engine, console) as progress:
            executor.run(engine, on_event=progress.update)
        tracker.sync()  # the tables name each trial's run
        writer.renew()  # only the driver that holds the lease may write the results
        report = write_results(study, ledger.snapshot(study.name), home)
        writer.renew()
        _publish(tracker, ledger, study, home, options)
    finally:
        unshown = tracker.close()
    return report, unshown


def _place(options: RunOptions, study: Study, ledger: Ledger) -> RunOptions:
    """Return `options` with the places that the study began with; raise RequestError if they name other ones."""
    options = places.continue_from(options, ledger.study(study.name), begun=bool(ledger.trials(study.name)))
    if options.store:
        root = options.checkpoint_root(study.name)
        require_writable(root)
        places.refuse_other_ledger(root, study.name, ledger, options)
    return options


def check_data(study: Study, data_dir: Path | None) -> dict[str, DatasetFacts]:
    """Return the facts of every data set; raise DataError or RequestError if one is missing or does not fit."""
    facts: dict[str, DatasetFacts] = {}
    missing: dict[str, str] = {}
    trainable = load_trainable(study.trainable)
    for label in study.labels:
        trainable.check(study.given_for(label), confirms=study.opens_test)
        task = study.datasets[label]
        try:
            trainable.check_data(task, data_dir)
        except DataError as error:
            missing[label] = str(error)
            continue
        facts[label] = trainable.find_facts(task, data_dir)
        if (metrics := trainable.metrics(task, facts[label])) is not None:
            _refuse_unknown_metrics(study, label, metrics)
    if missing:
        here = " ".join(f"--dataset {label}" for label in facts) if study.compare is not None else ""
        hint = [f"To compare on those that are here: {here}"] if here else []
        raise DataError("\n".join([*dict.fromkeys(missing.values()), *hint]))
    return facts


def _refuse_unknown_metrics(study: Study, label: str, metrics: Sequence[str]) -> None:
    """Raise RequestError for an objective or constraint that no trial will report."""
    known = [*COST_METRICS, *metrics]
    compared = study.compare.metrics if study.compare is not None else ()
    tested = [on_test(name) for name in known]
    for metric in [*(o.metric for o in study.objectives), *(c.metric for c in study.constraints), *compared]:
        if metric not in known and not (metric in compared and metric in tested):
            raise RequestError(f"data set {label!r} has no metric {metric!r}. {did_you_mean(metric, known)}")


def check_resources(options: RunOptions) -> None:
    """Raise ResourceError if this machine, or the cluster at `address`, cannot hold one trial with `options`.

    Nothing is started or recorded. A cluster is joined, its nodes are waited for, and it is left again. A cluster
    without `gpus` is refused, because the user must say how many of its GPUs to use. `autoscale` without a cluster is
    refused too.
    """
    if options.executor == "local":
        _refuse_what_is_elsewhere(options)
        return
    if options.address is not None and options.gpus is None:
        rule = "say how many of its GPUs to use. Type --gpus 8, or --gpus 0."
        raise ResourceError(f"--address {options.address}: {rule}")
    if options.autoscale is not None and options.address is None:
        rule = "a Ray that ablate starts has no autoscaler. Name a cluster by --address."
        raise ResourceError(f"--autoscale {options.autoscale}: {rule}")
    _ray_executor(options, options.runs_dir, options.runs_dir).check()


def make_executor(options: RunOptions, home: Path, store: Place) -> Executor:
    """Return the executor for `options`; without `gpus`, it uses all GPUs of this machine."""
    if options.executor == "ray":
        return _ray_executor(options, home, store)
    return LocalExecutor(
        home=home,
        store=store,
        data_dir=options.data_dir,
        device=options.device,
        trainer=options.trainer,
        grace_seconds=options.grace_seconds,
    )


def _ray_executor(options: RunOptions, home: Path, store: Place) -> RayExecutor:
    here = torch.cuda.device_count() if options.device != "cpu" else 0
    return RayExecutor(
        home=home,
        store=store,
        data_dir=options.data_dir,
        device=options.device,
        gpus=here if options.gpus is None else options.gpus,
        gpus_per_trial=options.gpus_per_trial,
        cpus_per_trial=options.cpus_per_trial,
        address=options.address,
        autoscale=options.autoscale,
        trainer=options.trainer,
        grace_seconds=options.grace_seconds,
    )


def _refuse_what_is_elsewhere(options: RunOptions) -> None:
    """Raise ResourceError for options that training in this process cannot use: a cluster, or a missing GPU."""
    elsewhere = {
        "--address": options.address,
        "--gpus": options.gpus or None,
        "--autoscale": options.autoscale,
    }
    for option, value in elsewhere.items():
        if value is not None:
            raise ResourceError(f"{option} {value}: --executor local trains in this process, one trial at a time.")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ResourceError(f"--device {options.device}: there is no GPU here. Leave --device out, or type cpu.")


def _held(
    ledger: Ledger, study: Study, text: str, options: RunOptions, unrenewed: tuple[object, ...] | None
) -> StudyWriter:
    store, tracking = places.noted(options)
    return ledger.acquire(
        study.name,
        file_text=text,
        fingerprint=study.fingerprint(),
        seed=study.seed,
        holder=f"{socket.gethostname()} (process {os.getpid()})",
        takeover=options.takeover,
        unrenewed=unrenewed,
        store=store,
        tracking=tracking,
    )


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _progress(study: Study, engine: Search, console: Console) -> Iterator[ProgressDisplay]:
    progress = ProgressDisplay(
        study,
        console,
        standings=partial(engine.standings, planned_trials(study)),
        front=engine.front,
    )
    with progress:
        yield progress


def _publish(tracker: Tracker, ledger: Ledger, study: Study, home: Path, options: RunOptions) -> None:
    """Pass the study's final networks, its report and its tables to the tracker."""
    tracker.log_models(select_networks(study, ledger.snapshot(study.name)), data_dir=options.data_dir)
    written = [home / "report", home / "trials.parquet", home / "reports.parquet", home / "study.yaml"]
    tracker.log_artifacts(written)
    if options.store:
        try:
            copy_into(options.checkpoint_root(study.name), written)
        except OSError as error:
            raise CheckpointDownError(
                f"--store {redact_url(options.store)}: the report cannot be written there:"
                f" {error_text(error, options.store)}"
            ) from error


def _refuse_empty(ledger: Ledger, study: Study) -> None:
    trials = ledger.trials(study.name)
    if any(t.state is TrialState.COMPLETE for t in trials):
        return
    errors = [t.error for t in trials if t.error]
    reason = f" The last one said: {errors[-1]}" if errors else ""
    raise StudyFailedError(f"study {study.name!r}: none of its {len(trials)} trials completed.{reason}")
