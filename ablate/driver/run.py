"""Drives one study from its file to its report: create or resume, run, confirm, write the results."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ablate.base.errors import (
    CheckpointDownError,
    LedgerDownError,
    NoLedgerError,
    RegistryError,
    RequestError,
    StorageError,
    StudyFailedError,
)
from ablate.base.files import (
    SEED_FOLDER,
    STUDY_FOLDERS,
    Place,
    below,
    copy_into,
    disk_path,
    refuse_links,
    remove_folder,
    require_writable,
)
from ablate.base.garbage import collect_as_usual
from ablate.base.redaction import error_text, redact_url
from ablate.base.waiting import LATE, after
from ablate.core.config import DatasetFacts
from ablate.core.objectives import stopped_text
from ablate.core.registry import TRACKERS
from ablate.core.trainable import Trainable, load_trainable
from ablate.core.trial import TrialConfig, TrialState, checkpoint_folder, seed_place
from ablate.driver import resume as resumption
from ablate.driver import warm_start
from ablate.driver.again import retry_unreported, unreported
from ablate.driver.alone import only_study
from ablate.driver.campaign_code import checkouts, opening, record_code, refuse_other_packages
from ablate.driver.cautions import cautions
from ablate.driver.compared_plan import note_plan, refuse_failed_rows, require_variants
from ablate.driver.data_checks import check_data
from ablate.driver.events import Tell, follow
from ablate.driver.executors import check_resources, import_ahead, make_executor
from ablate.driver.options import RunOptions
from ablate.driver.own_sizes import (
    measuring,
    refuse_impossible_parts,
    require_same_sizes,
    require_told,
    told_sizes,
    unsized_notes,
)
from ablate.driver.progress import ProgressDisplay
from ablate.driver.prometheus import require_free, serve_metrics
from ablate.execution import Executor
from ablate.functions.border.guarded import end_processes
from ablate.functions.code import changes as own
from ablate.functions.code.module import CODE
from ablate.functions.command_record import empty, forget_records
from ablate.ledger import EventRecord, Ledger, StudyWriter
from ablate.results.front.budget import ended_early, ended_early_lines
from ablate.results.front.front import column_of
from ablate.results.trials.results import Results
from ablate.results.trials.tables import trials_table, write_study_file
from ablate.studies import homes as places
from ablate.studies.report import write_results, writing_text
from ablate.studies.stored import KNOWN_SIZES, knowing, known_sizes, results_of, select_networks, with_files
from ablate.study import Study, parse_study, read_study
from ablate.tracking import Tracker, build_trackers, sync_periodically
from ablate.tuning import Search, require_searchable
from ablate.tuning.state.planned import planned_trials

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
    text: str | None = None,
    tell: Tell | None = None,
    **changed: Any,
) -> FinishedStudy:
    """Create or resume the study in `file`, and run it to its confirmed front and report.

    If `text` is given, it is the study, and `file` is only its name in messages. `tell` gets the events of `follow`.
    What `changed` the file (the options of `read_study`) becomes part of the study.

    Raises RequestError before anything is started, also while this process runs another study, LedgerError if the lease
    cannot be acquired, StudyFailedError if no trial completed, and KeyboardInterrupt with the signal if it was
    interrupted (the same command continues the study).
    """
    if text is None:
        study, text = read_study(file, **changed)
    else:
        study = parse_study(text, str(file))
    # The processes that end have looked at the code; with --executor local they train too.
    with only_study(study.name):
        try:
            return _search(study, text, options, console, tell)
        finally:
            end_processes()


def _search(study: Study, text: str, options: RunOptions, console: Console, tell: Tell | None) -> FinishedStudy:
    events = _refuse_other(study, text, options)
    trainable = load_trainable(study.trainable)
    facts, sizes = _check_first(study, trainable, options, known_sizes(events))
    study = knowing(study, sizes)
    home, files = options.home(study.name), own.source_files(study)
    with places.open_study(study.name, options) as ledger:
        observations = warm_start.find(ledger, study, options)
        options = _place(options, study, ledger)
        executor = make_executor(options, home, options.checkpoint_root(study.name), code=own.user_code(study))
        if options.executor == "ray":
            end_processes()  # what has looked at the code; workers start their own
        import_ahead(study, options)
        afresh, say = resumption.begins_afresh(ledger, study), partial(_say, console)
        with resumption.acquire_when_free(partial(_held, ledger, study, text, options, afresh), say) as writer:
            if afresh:
                say("No trial of this study has reported: it begins again with the settings of now.")
                remove_folder(below(options.checkpoint_root(study.name), STUDY_FOLDERS[0]))
            found = resumption.find(ledger, study)  # before this driver commits anything
            if not options.code_changed:
                refuse_other_packages(ledger.events(study.name))
            root = options.checkpoint_root(study.name)
            for place in {home.absolute(), root}:
                places.mark(place, ledger)
            write_study_file(text, home)
            if files and files != own.recorded_files(ledger.events(study.name)):
                writer.note(own.CODE, None, {"files": files})
            if sizes is not None and sizes != known_sizes(ledger.events(study.name)):
                writer.note(KNOWN_SIZES, None, sizes)
            note_plan(writer, ledger, study)
            record_code(writer, ledger, study, options)
            retry_unreported(writer, ledger, study, files)
            taken = warm_start.record(writer, ledger, study, observations)
            remarks = (*cautions(study, facts, options.data_dir), *unsized_notes(study, trainable, facts))
            _announce(console, found, taken, remarks)
            engine = Search(
                study,
                writer,
                ledger,
                measure=measuring(study, trainable),
                facts_of=facts.__getitem__,
                group_key=lambda config: trainable.group_key(config, facts[config.key.dataset]),
                discard=partial(_discard, root),
                prepare=_preparing(ledger, study, options, files),
                keep_going=options.keep_going,
                gpus_per_trial=options.gpus_per_trial,
                only=options.variants or (),
            )
            report, unshown = _run(engine, executor, ledger, writer, options, console, tell)
            if study.campaign is not None:  # its commands say what was found
                return FinishedStudy(study=study, home=home, report=report)
        snapshot = with_files(ledger.snapshot(study.name), options)
        console.print(results_of(study, snapshot))
        for line in (*ended_early_lines(study, ended_early(Results.of(study, snapshot))), *unshown):
            _say(console, line)
        _refuse_empty(ledger, study)
        refuse_failed_rows(study, snapshot, report, only=options.variants)
    return FinishedStudy(study=study, home=home, report=report)


def _preparing(ledger: Ledger, study: Study, options: RunOptions, files: Mapping[str, str]) -> Callable[[str], None]:
    """Return what is called before a trial begins: it makes worktrees, and raises CodeDownError if code was edited.

    Workers of a cluster have a copy of the code as it was.
    """
    make = checkouts(ledger, study, options)
    if options.address or not files or "code" in opening(ledger, study):
        return make
    look = own.watching(study, files)

    def prepare(trainable: str) -> None:
        look()
        make(trainable)

    return prepare


def _refuse_other(study: Study, text: str, options: RunOptions) -> list[EventRecord]:
    """Return the events of the study of this name, none if it is new; its code is not imported.

    Raises StudyMismatchError if it is another study, or its code another.
    """
    refuse_links(options.home(study.name))
    with suppress(NoLedgerError), Ledger.open(options.storage_url(study.name), create=False) as ledger:
        resumption.refuse_other_study(ledger, study, text, extend=options.extend)
        if not ledger.last_report(study.name):
            return []  # there is nothing to compare with
        if not options.code_changed and "code" not in opening(ledger, study):
            own.refuse_other_code(study, ledger.events(study.name))
        return ledger.events(study.name)
    return []


def _check_first(
    study: Study, trainable: Trainable, options: RunOptions, recorded: dict[str, Any] | None
) -> tuple[dict[str, DatasetFacts], dict[str, Any] | None]:
    """Return the facts of each data set, and what a function's `size` tells: as `recorded` unless the code has changed.

    Raises what makes the study impossible before anything is started.
    """
    with _code_explained(options.home(study.name)):
        facts = check_data(study, options.data_dir)
    sizes = told_sizes(study, trainable, facts)
    if sizes is not None and recorded is not None and not options.code_changed:
        require_same_sizes(recorded, sizes, study.trainable)
        sizes = recorded
    elif sizes is not None and recorded is None and not sizes["metrics"]:
        sizes = None  # there is no `size`, and never was
    study = knowing(study, sizes)
    require_told(study)
    require_variants(study, options.variants or ())
    require_searchable(study, measure=measuring(study, trainable), facts_of=facts.__getitem__)
    refuse_impossible_parts(study, trainable, facts)
    if options.pack != 1:
        _refuse_timed(study, options)
    for name in options.trackers:
        TRACKERS.load(name)
    require_free(options.metrics_port, host=options.metrics_host)
    check_resources(options)
    return facts, sizes


def _refuse_timed(study: Study, options: RunOptions) -> None:
    """Raise RequestError if a study measures its trials' seconds, which depend on what trains beside them."""
    compared = study.compare.metrics if study.compare is not None else ()
    timed = [*(o.metric for o in study.objectives), *(c.metric for c in study.constraints), *compared]
    timed += [] if study.campaign is None else study.campaign.cheaper
    if "wall_seconds" in timed:
        raise RequestError(
            f"--pack {options.pack}: study {study.name!r} measures wall_seconds, and in a pack a trial has its share of"
            " the seconds of all. Leave --pack out."
        )


def _announce(console: Console, found: resumption.Found | None, taken: str | None, remarks: Sequence[str]) -> None:
    """Say what a start found, what the sampler was told, and at the first start what a user should know."""
    first = [f"Note: {line}" for line in remarks] if found is None else [resumption.start_text(found, now=time.time())]
    for line in (*first, *([taken] if taken else [])):
        _say(console, line)


@contextmanager
def _code_explained(home: Path) -> Iterator[None]:
    """Say where the code of a study is that a notebook or a script began; it is never imported unasked."""
    try:
        yield
    except RegistryError as error:
        code = home / CODE
        if not code.is_dir():
            raise
        call = f"ablate.load_study({home.name!r}, runs_dir={str(home.parent)!r}).run()"
        raise RegistryError(f"{error}. Code of this study is in {code}. To run it, type in Python: {call}") from error


def _run(
    engine: Search,
    executor: Executor,
    ledger: Ledger,
    writer: StudyWriter,
    options: RunOptions,
    console: Console,
    tell: Tell | None,
) -> tuple[Path, Sequence[str]]:
    """Run a study to its end, then write its report and publish it.

    Returns the path of the report page, and lines for the user on what the tracker could not show.
    """
    study, home = engine.study, options.home(engine.study.name)
    tracker = build_trackers(
        options.trackers, uri=options.tracking_uri, study=study, ledger=ledger, writer=writer, home=home,
        store=options.checkpoint_root(study.name),
    )  # fmt: skip
    try:
        watched = serve_metrics(engine, options.metrics_port, host=options.metrics_host)
        standings = partial(engine.standings, planned_trials(study))
        events = follow(ledger, study.name, tell)
        display = ProgressDisplay(study, console, standings=standings, front=engine.front)
        with sync_periodically(tracker.sync), watched, display as progress:

            def on_event() -> None:
                collect_as_usual()  # a trial was handed out: what a search needs is imported
                progress.update()
                events()

            with _overtaken_first(writer):
                executor.run(engine, on_event=on_event)
            events()
        tracker.sync()  # the tables name each trial's run
        if study.campaign is not None:
            return home, ()
        writer.renew()  # only the driver that holds the lease may write the results
        with after(LATE, lambda: _say(console, writing_text(study.name))):
            report = write_results(study, with_files(ledger.snapshot(study.name), options), home)
        writer.renew()
        _publish(tracker, ledger, study, home, options)
    finally:
        unshown = tracker.close()
    return report, unshown


@contextmanager
def _overtaken_first(writer: StudyWriter) -> Iterator[None]:
    """Raise StaleDriverError instead of CheckpointDownError where another driver, which tidies up, has taken over."""
    try:
        yield
    except CheckpointDownError:
        with suppress(StorageError, LedgerDownError):
            writer.renew()
        raise


def _place(options: RunOptions, study: Study, ledger: Ledger) -> RunOptions:
    """Return `options` with the places that the study began with; raise RequestError if they name other ones."""
    options = places.continue_from(options, ledger.study(study.name), begun=bool(ledger.trials(study.name)))
    if options.store:
        root = options.checkpoint_root(study.name)
        require_writable(root)
        places.refuse_other_ledger(root, study.name, ledger, options)
    return options


def _held(
    ledger: Ledger, study: Study, text: str, options: RunOptions, afresh: bool, unrenewed: tuple[object, ...] | None
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
        afresh=afresh,
    )


def _discard(root: Place, config: TrialConfig, epoch: int) -> None:
    from ablate.engine.training import checkpoint  # imports torch

    folder = checkpoint_folder(root, config.key)
    for place in (folder, *(seed_place(folder, seed) for seed in config.seeds)):
        checkpoint.discard(place, epoch)
    forget_records(folder)
    if epoch == 0 and (disk := disk_path(folder)) is not None:
        for files in disk.glob(f"{SEED_FOLDER}*"):
            if files.is_dir() and not files.is_symlink():
                empty(files)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _publish(tracker: Tracker, ledger: Ledger, study: Study, home: Path, options: RunOptions) -> None:
    """Pass the study's final networks, its report and its tables to the tracker."""
    from ablate.studies.model_export import write_model  # it imports torch

    snapshot, root = ledger.snapshot(study.name), options.checkpoint_root(study.name)
    tracker.log_models(
        select_networks(study, snapshot), write=partial(write_model, snapshot=snapshot, checkpoints=root)
    )
    written = [home / "report", home / "trials.parquet", home / "reports.parquet", home / "study.yaml"]
    tracker.log_artifacts(written)
    if options.store:
        try:
            copy_into(root, written)
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
    if unreported(ledger, study):
        reason += ". Correct it and type the same command."
    rows = trials_table(ledger.snapshot(study.name))
    if stopped := stopped_text(study.constraints, rows["state"].to_list(), column_of(rows, "search")):
        reason += f" {stopped[0].upper()}{stopped[1:]}."
    raise StudyFailedError(f"study {study.name!r}: none of its {len(trials)} trials completed.{reason}")
