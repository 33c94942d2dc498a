"""Studies that are asked for more than they were begun with: files, values by seed, and a driver that runs them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ablate.core.trial import CONFIRM_SEED_BASE, Decision, Report, TrialConfig
from ablate.driver import resume as resumption
from ablate.engine.training.family import family
from ablate.ledger import Ledger, TrialRecord
from ablate.results.trials.tables import reports_table, trials_table
from ablate.study import parse_study
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import hold_of, search_of, url_in

SEARCH = """\
study: s
seed: 3
datasets: [digits]
model: {width: {int: [8, 64], step: 8}, mlp: {choices: [none, 64]}}
training: {epochs: 3, learning_rate: {float: [1.0e-4, 1.0e-1], log: true}}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 8}
confirm: {replicates: 3}
"""
COMPARISON = """\
study: s
protocol: paper
seed: 3
datasets: {digits: {}, mnist: {}}
model: {depth: {choices: [1, 2]}}
training: {epochs: 3}
variants: [{name: wide, model: {width: 60}}, {name: narrow, model: {width: 20}}]
replicates: 3
compare: {baseline: wide, columns: {both: [digits, mnist]}}
"""
DIVERGED, BROKEN = "diverged", "broken"


def value(config: TrialConfig, seed: int) -> float:
    """Return a closed-form accuracy that depends on network, rate and seed."""
    off = (math.log10(family(config).training.learning_rate) + 2) ** 2
    capacity = family(config).model.width / (family(config).model.width + 20 + family(config).model.depth)
    return 0.9 * capacity * math.exp(-0.1 * off) + 0.01 * math.sin(7.0 * (seed % 97) + family(config).model.width)


def report(config: TrialConfig, epoch: int, gone: Iterable[int] = ()) -> Report:
    """Return the report of a trial after an epoch, each seed with its own value; the seeds in `gone` diverged."""
    final = epoch == config.epochs
    rows = []
    for seed in config.seeds:
        accuracy = math.nan if seed in gone else value(config, seed) * epoch / config.epochs
        row = {"train_loss": 1.0, "val_loss": 1 - accuracy, "val_accuracy": accuracy}
        rows.append(
            row
            | ({"test_loss": 1 - accuracy, "test_accuracy": accuracy} if final and config.stage == "confirm" else {})
        )
    diverged = tuple(seed in gone for seed in config.seeds)
    return Report(epoch=epoch, metrics=tuple(rows), wall_seconds=float(epoch), diverged=diverged, final=final)


def run(text: str, folder: Path, ends: dict[int, str] | None = None, limit: int | None = None) -> None:
    """Drive the study in `text` to its end or for `limit` trials; `ends` says what else becomes of trial numbers."""
    study = parse_study(text)
    folder.mkdir(exist_ok=True)
    with Ledger.open(url_in(folder), clock=Clock()) as ledger:
        resumption.refuse_other_study(ledger, study, text, extend=True)
        with hold_of(study, ledger, file_text=text) as writer:
            search = search_of(study, writer, ledger)
            while limit != 0 and (config := search.next_trial()) is not None:
                limit = None if limit is None else limit - 1
                finish(search, config, (ends or {}).get(config.key.number, ""))
            assert limit == 0 or search.finished


def finish(search: Search, config: TrialConfig, end: str) -> None:
    """Report a trial's epochs; its last seed diverges at the end, or it breaks, where `end` says so."""
    if end == BROKEN:
        search.fail(config.key, "out of memory")
        return
    for epoch in range(1, config.epochs + 1):
        last = epoch == config.epochs
        gone = config.seeds[-1:] if end == DIVERGED and last else ()
        if search.report(config.key, report(config, epoch, gone)) is Decision.STOP:
            return


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return trials and reports as tables."""
    with Ledger.open(url_in(folder)) as ledger:
        found = ledger.snapshot("s")
        return trials_table(found), reports_table(found)


def seeds_of(trials: Iterable[TrialRecord]) -> dict[int | None, list[tuple[int, ...]]]:
    """Return the seeds of confirmation trials by source, less their base, one tuple per trial."""
    found: dict[int | None, list[tuple[int, ...]]] = {}
    for trial in trials:
        if trial.config.stage == "confirm":
            own = tuple(seed - CONFIRM_SEED_BASE for seed in trial.config.seeds)
            found.setdefault(trial.config.source, []).append(own)
    return found
