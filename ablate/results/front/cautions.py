"""What limits the trust in a data set's answer: coded warnings, and what one sample of each split is worth."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.base.plain_text import at_most
from ablate.core.objectives import is_maximized, is_share, quality_objective
from ablate.results.front.confirmation import failed_text
from ablate.results.front.findings import Findings
from ablate.results.front.front import confirmed, metric_at
from ablate.results.front.range_ends import range_ends
from ablate.results.front.tables import counted_rows, network, quality_name
from ablate.results.rendering.numbers import format_signed
from ablate.results.statistics.intervals import FEW_SEEDS, smallest_effect
from ablate.results.trials.pooling import alike_over_seeds
from ablate.results.trials.study_warnings import (
    StudyWarning,
    coarse_splits,
    equal_seeds,
    few_errors,
    heavy_tail,
    split_samples,
)
from ablate.study import Study
from ablate.study.sections import command_of

MOST_NAMED = 5  # networks in a warning


def cautions(found: Findings) -> Iterator[StudyWarning]:
    """Yield the warnings of one data set."""
    study, front, known = found.results.study, found.front, found.confirmations
    if study.protocol == "paper":
        text = "Validation used the test split: every number here was chosen on the split that it is measured on"
        yield StudyWarning(code="paper-protocol", text=text)
    if known.is_open and front.height:
        yield StudyWarning(code="provisional", text="These numbers are provisional")
    elif front.height and front["stage"][0] != "confirm":
        yield StudyWarning(code="unconfirmed", text=_unconfirmed(study))
    if failed := failed_text(study, found.listed):
        yield StudyWarning(code="failed-confirmations", text=failed)
    seeds = [row["replicates"] for row in front.iter_rows(named=True) if row["stage"] == "confirm"]
    if seeds and min(seeds) < FEW_SEEDS:
        yield StudyWarning(code="few-seeds", text=_few_seeds(study, min(seeds)))
    alike = alike_over_seeds(counted_rows(found.pooled.reports), "trial")
    if same := [network(study, row) for row in front.iter_rows(named=True) if row["trial"] in alike]:
        yield equal_seeds("; ".join(at_most(same, MOST_NAMED)))
    margin = study.confirm.margin if study.confirm else {}
    name = quality_name(study)
    if is_share(name):
        yield from coarse_splits(found.listed, "validation", *margin.values())
        yield from few_errors(front.drop_nulls(f"{name}_se_samples").select(name, f"{name}_samples").rows())
    elif found.assessed is not None:
        yield from heavy_tail([(name, found.assessed.tail)])
    if ends := range_ends(study, found.listed, found.dataset).text:
        yield StudyWarning(code="range-end", text=ends)
    outliers = [
        f"seed {row['outlying_seeds']} of {network(study, row)}"
        for row in front.iter_rows(named=True)
        if row["outlying_seeds"]
    ]
    if outliers:
        named = "; ".join(at_most(outliers, MOST_NAMED))
        text = f"Not explained by the other seeds: {named}. Means and intervals include them"
        yield StudyWarning(code="outlying-seeds", text=text)


def _unconfirmed(study: Study) -> str:
    text = "Nothing here is confirmed: the best numbers of a search look better than they are"
    if study.confirm is not None:
        return text
    how = "confirm: {replicates: 5}"
    if command_of(study.trainable) is not None:
        how += " and a metric test_… (ablate wrap: --test-metric, --confirm 5)"
    return f"{text}. To train the best on fresh seeds, add {how} and type --extend"


def _few_seeds(study: Study, seeds: int) -> str:
    noun = study.noun
    if seeds < 2:
        return f"One confirmation seed per {noun}: nothing is known about how much the seed matters"
    size = f"{smallest_effect(seeds):.1f} standard deviations"
    return f"{seeds} confirmation seeds per {noun}: a pair of {noun}s must differ by {size} to be told apart reliably"


def splits_text(found: Findings) -> str:
    """Return how many samples decided, and what one is worth, for metrics that are shares; else an empty text."""
    study = found.results.study
    if not is_share(quality_name(study)):
        return ""
    validation = split_samples(found.listed, "validation_samples")
    test = split_samples(found.listed, "test_samples") if found.tested else None
    split = "test" if study.protocol == "paper" else "validation"
    parts = []
    if validation:
        parts.append(f"{validation:,} {split} samples decided the search: one is {100 / validation:.2g} points.")
    if test and study.protocol != "paper":
        parts.append(f"{test:,} test samples measured the confirmation: one is {100 / test:.2g} points.")
    return " ".join(parts)


def shrinkage_text(found: Findings) -> str:
    """Return by how much the search's numbers were better than the confirmed ones; empty if no network is confirmed."""
    study, own = found.results.study, found.pooled.trials
    quality, name = quality_objective(study.objectives), quality_name(study)
    measured = metric_at(quality.metric, "confirm")
    if not {quality.metric, measured} <= set(own.columns):
        return ""
    searched = own.filter(stage="search").select(source="trial", searched=quality.metric)
    both = confirmed(own).select("source", confirmed=measured).join(searched, on="source").drop_nulls()
    if not both.height:
        return ""
    drop = float((both["searched"] - both["confirmed"]).to_numpy().mean())
    size = format_signed(name, abs(drop))  # without a sign if it rounds to 0
    word = "better" if (drop > 0) == is_maximized(quality) else "worse"
    unit = " points" if is_share(name) else ""
    said = f"{size[1:]}{unit} {word} than" if size[0] == "+" else "as good as"
    return (
        f"The search's numbers were {said} the confirmed ones, on average over all {both.height} "
        f"confirmed {study.noun}{'s' * (both.height != 1)}."
    )
