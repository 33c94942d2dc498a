"""What a search rests on, in words: protocol, trials, seeds, confirmation, samples."""

from __future__ import annotations

import polars as pl

from ablate.base.plain_text import counted
from ablate.core.trial import CONFIRM_SEED_BASE, PLACEBO_SEED_BASE
from ablate.results.front.budget import gpu_hours, hours_content, hours_text
from ablate.results.front.cautions import shrinkage_text, splits_text
from ablate.results.front.confirmation import protocol_text
from ablate.results.front.findings import Findings, findings
from ablate.results.front.front import confirmed
from ablate.results.trials.results import Results
from ablate.study import PLACEBO, Study


def status_lines(results: Results) -> list[tuple[str, str]]:
    """Return the page's lines on the study: protocol, seeds, what was spent, samples, how far the search misled."""
    study = results.study
    lines = [("Protocol", protocol_text(study)), ("Seeds", seeds_text(study, results.reports))]
    if (spent := hours_content(study, gpu_hours(results))) is not None:
        lines.append(("Spent by the search", hours_text(spent)))
    for found in findings(results).values():
        for term, text in (("Samples", splits_text(found)), ("Search against confirmation", shrinkage_text(found))):
            lines += [(f"{term}{found.named('of')}", text)] if text else []
    return lines


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
        groups = {word: [seed for seed in seeds if not _is_of_placebo(seed)]}
        groups[f"tuning of the {PLACEBO}" if stage == "tune" else f"the {PLACEBO}"] = list(
            filter(_is_of_placebo, seeds)
        )
        for who, own in groups.items():
            if own:
                listed = f"{own[0]} to {own[-1]}" if len(own) > 3 else ", ".join(map(str, own))
                parts.append(f"{who} on {counted(len(own), 'seed')} ({listed})")
    return "; ".join(parts)


def _is_of_placebo(seed: int) -> bool:
    """Return whether a seed is one of a comparison's placebo, at whichever stage."""
    return seed % CONFIRM_SEED_BASE >= PLACEBO_SEED_BASE


def dominated_text(found: Findings) -> str:
    """Return which confirmed networks left the front on the test split, so that they are not hidden."""
    complete = confirmed(found.pooled.trials)
    shown = [row["trial"] for row in found.rows]  # the user's settings are said elsewhere
    off = [n for n in complete["trial"].to_list() if n not in shown]
    if not found.tested or found.provisional or not off:
        return ""
    study, word = found.results.study, "confirmed" if found.confirmed else "retrained"
    place, verb = ("on the front", "is on it") if len(study.objectives) > 1 else ("the best", "is the best")
    listed = ", ".join(map(str, off[:20])) + (" …" if len(off) > 20 else "")
    chances = [found.assessed.front.get(n, 0.0) for n in off] if found.assessed is not None else []
    one = len(off) == 1
    who = "It" if one else "The most probable of them"
    likely = f" {who} {verb} with P = {max(chances):.2f}." if chances else ""
    are, theirs, they_are = ("is", "its", "it is") if one else ("are", "their", "they are")
    return (
        f"{len(off)} of the {complete.height} {word} {study.noun}s {are} no longer {place} with {theirs} test numbers "
        f"(trial{'s' * (not one)} {listed}); {they_are} in the figure and in trials.csv.{likely}"
    )
