"""What limits the trust in a data set's answer: coded warnings, and what one sample of each split is worth."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.base.plain_text import at_most
from ablate.core.objectives import is_share
from ablate.results.front.confirmation_text import failed_text
from ablate.results.front.findings import Findings
from ablate.results.front.range_ends import range_ends
from ablate.results.front.tables import counted_rows, network, quality_name
from ablate.results.trials.pooling import alike_over_seeds
from ablate.results.trials.study_warnings import (
    StudyWarning,
    coarse_splits,
    equal_seeds,
    few_errors,
    few_seeds,
    heavy_tail,
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
    if seeds:
        yield from few_seeds(min(seeds), "confirmation seed", "confirm.replicates")
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
