"""The text of page and terminal about confirmation: its progress, its results and its failures."""

from __future__ import annotations

import time

import polars as pl

from ablate.base.plain_text import at_most, counted
from ablate.core.registry import FAMILY
from ablate.core.trial import CONFIRM_SEED_BASE, PLACEBO_SEED_BASE
from ablate.results.front.front import confirmed, front_stage
from ablate.results.front.tables import network
from ablate.results.rendering.numbers import printable
from ablate.results.trials.frozen import Confirmations, confirmations
from ablate.results.trials.pooling import NETWORK
from ablate.results.trials.results import Results
from ablate.study import PLACEBO, Study

MOST_FAILED = 5  # maximum number of failed confirmations that are named


def protocol_text(study: Study) -> str:
    """Return what validation is in this study; every page and every terminal table starts with it."""
    if study.protocol == "paper" and study.tune is not None:
        return "paper: validation used the test split, and the tuned settings of each row were chosen on it"
    if study.protocol == "paper" and study.compare is not None:
        return "paper: validation used the test split, as the paper does; nothing was chosen on it"
    if study.protocol == "paper":
        return (
            "paper: validation used the test split, so every validation number here is a test number that choices were "
            "made on"
        )
    if study.trainable != FAMILY:
        return (
            "held out: search and early stopping used what the code reported as validation; whether it trains on test "
            "data cannot be seen from here"
        )
    return "held out: validation is a part of the training data; search and early stopping never saw the test split"


def open_text(found: Confirmations) -> str:
    """Return what is still to run, in words: confirmations, or the rest of an extended search."""
    if found.ended < found.frozen:
        return f"{found.ended} of {found.frozen} confirmations {'has' if found.ended == 1 else 'have'} ended"
    return f"{counted(found.later, 'search trial')} began after the front was frozen"


def withheld_text(study: Study, found: Confirmations) -> str:
    """Return why there is no answer yet, or an empty text if there may be one."""
    if found.is_open:
        return f"There is no answer yet: {open_text(found)}."
    if study.confirm is not None and not found.frozen:
        return "There is no answer yet: the best are confirmed once the search is over."
    return ""


def confirmation_text(results: Results, dataset: str) -> str:
    """Return in words what a data set's numbers are of: the split, and how many trials."""
    study, trials = results.study, results.pooled.trials
    split = "test" if front_stage(trials, dataset) == "confirm" else "validation"
    if confirmations(results, dataset).is_open:
        return f"the numbers are of the {split} split"
    if split == "test":
        some = counted(_find_confirmed(trials, dataset), study.noun)
        if study.protocol == "paper":
            return f"{some} retrained on fresh seeds, not confirmed: chosen on the same test split"
        return f"{some} confirmed on fresh seeds, test split"
    complete = trials.filter((pl.col("dataset") == dataset) & (pl.col("state") == "COMPLETE")).height
    return f"validation numbers of {counted(complete, 'search trial')}"


def on_front_text(study: Study, trials: pl.DataFrame, dataset: str, on_front: int) -> str:
    """Return `; 7 of them are on the front`, or an empty text if all are, or there is none."""
    if len(study.objectives) == 1 or on_front >= _find_confirmed(trials, dataset):
        return ""
    return f"; {on_front} of them {'is' if on_front == 1 else 'are'} on the front"


def _find_confirmed(trials: pl.DataFrame, dataset: str) -> int:
    return confirmed(trials).filter(pl.col("dataset") == dataset).select(NETWORK).n_unique()


def opened_text(results: Results, dataset: str) -> str:
    """Return `, opened once at …`, or how often and when.

    Empty if the split was not opened, or if validation used it from the first epoch on.
    """
    moments = sorted(event.created_at for event in results.events_of(dataset, "test_opened"))
    if results.study.protocol == "paper" or not moments:
        return ""
    times = [f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(moment))} UTC" for moment in moments]
    return f", opened once at {times[0]}" if len(times) == 1 else f", opened {len(times)} times: at {', '.join(times)}"


def failed_text(study: Study, trials: pl.DataFrame) -> str:
    """Return the trials of a data set that failed in confirmation, and why; an empty text if none failed."""
    failed = trials.filter(pl.col("stage") == "confirm", pl.col("state") == "FAIL").rows(named=True)
    named = [
        f"trial {row['trial']} ({network(study, row)}): {(row['error'] or 'no reason was recorded').splitlines()[0]}"
        for row in failed
    ]
    text = f"{len(failed)} failed in confirmation: {'; '.join(at_most(named, MOST_FAILED))}"
    return printable(text) if failed else ""


def seeds_text(study: Study, reports: pl.DataFrame) -> str:
    """Return the study's seed and the replicate seeds seen at each stage."""
    parts = [f"study seed {study.seed}"]
    for stage, word in (
        ("tune", "tuning"),
        ("search", "every trial" if study.compare else "search replicates"),
        ("confirm", "confirmation replicates"),
    ):
        if study.compare is not None and stage == "confirm":
            continue  # a comparison's confirmation evaluates existing networks, on their own seeds
        seeds = reports.filter(pl.col("stage") == stage)["seed"].unique().sort().to_list()
        again = [seed for seed in seeds if seed % CONFIRM_SEED_BASE >= PLACEBO_SEED_BASE]
        of_placebo = f"tuning of the {PLACEBO}" if stage == "tune" else f"the {PLACEBO}"
        for who, own in ((word, [seed for seed in seeds if seed not in again]), (of_placebo, again)):
            if own:
                listed = f"{own[0]} to {own[-1]}" if len(own) > 3 else ", ".join(map(str, own))
                parts.append(f"{who} on {counted(len(own), 'seed')} ({listed})")
    return "; ".join(parts)
