"""The findings of one data set, computed once for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ablate.analysis import (
    Confirmations,
    CurveFit,
    Hypervolume,
    confirmations,
    cost_metric,
    fit_curve,
    front_stage,
    hypervolume,
    metric_at,
    pooled,
    quality_objective,
)
from ablate.config import Protocol
from ablate.objectives import count_states, is_share, signed
from ablate.report.confirmation import withheld_text
from ablate.report.numbers import compact, equal_seeds, quantity, ratio, spell_metric
from ablate.report.tables import last_reports, network, quality_name, replicate_values
from ablate.study import Study

CLOSE_POINTS = 0.01  # difference in accuracy within which the summary calls a network close to the best
CLOSE_RELATIVE = 0.05  # the same for metrics that are not shares
Row = dict[str, Any]
STATE_WORDS = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "unfinished",
    "WAITING": "waiting",
}


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One network that the summary names: its role, its row and its numbers in words."""

    role: str
    network: str
    quality: str
    cost: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of one data set; `front` is its part of `front_table`.

    `listed` are its trials as in the ledger; in `trials` and `reports` those of one network's seeds are pooled. While a
    confirmation or an extended search is unfinished there are no picks and no fit, and `answer` says why.
    """

    dataset: str
    protocol: Protocol
    stage: str
    listed: pl.DataFrame
    trials: pl.DataFrame
    reports: pl.DataFrame
    front: pl.DataFrame
    confirmations: Confirmations
    hypervolume: Hypervolume
    fit: CurveFit
    answer: str
    picks: tuple[Pick, ...]

    @property
    def tested(self) -> bool:
        """Whether the numbers are of confirmation runs on the test split."""
        return self.stage == "confirm"

    @property
    def provisional(self) -> bool:
        """Whether a confirmation, or an extended search, is unfinished."""
        return self.confirmations.is_open

    @property
    def confirmed(self) -> bool:
        """Whether the numbers are of a test split that influenced no choice, and every confirmation has ended."""
        return self.tested and not self.provisional and self.protocol == "held_out"


def findings(
    study: Study,
    dataset: str,
    trials: pl.DataFrame,
    reports: pl.DataFrame,
    front: pl.DataFrame,
    notes: Sequence[Any] = (),
) -> Findings:
    """Return the findings of one data set; every argument may be empty."""
    listed = trials.filter(pl.col("dataset") == dataset)
    own, own_reports = pooled(listed, reports.filter(pl.col("dataset") == dataset) if reports.height else reports)
    rows = front.filter(pl.col("dataset") == dataset)
    known = confirmations(listed, dataset, notes)
    answer, picks = summary(study, dataset, rows)
    if rows.height and (withheld := withheld_text(study, known)):
        answer, picks = withheld, ()
    return Findings(
        dataset=dataset,
        protocol=study.protocol,
        stage=front_stage(own, dataset),
        listed=listed,
        trials=own,
        reports=own_reports,
        front=rows,
        confirmations=known,
        hypervolume=hypervolume(own, study.objectives, constraints=study.constraints),
        fit=front_fit(study, rows.clear() if known.is_open else rows, own_reports),
        answer=answer,
        picks=picks,
    )


def size_metric(study: Study) -> str:
    """Return the size metric of figures and fits: the declared cost unless it is time."""
    cost = cost_metric(study.objectives)
    return "params" if cost == "wall_seconds" else cost


def front_fit(study: Study, front: pl.DataFrame, reports: pl.DataFrame) -> CurveFit:
    """Fit error (1 - accuracy, or the loss) against size along the front, with the replicates of each network."""
    objective, size = quality_objective(study.objectives), size_metric(study)
    last = last_reports(reports)
    sizes, errors, networks = [], [], []
    for row in front.iter_rows(named=True):
        metric = metric_at(objective.metric, row["stage"])
        values = replicate_values(last, row["dataset"], row["trial"], metric) or [row[quality_name(study)]]
        sizes += [float(row[size] or 0)] * len(values)
        errors += [1 - value if is_share(metric) else value for value in values]
        networks += [row["trial"]] * len(values)
    return fit_curve(sizes, errors, networks=networks)


def summary(study: Study, dataset: str, front: pl.DataFrame) -> tuple[str, tuple[Pick, ...]]:
    """Return the answer in one sentence, and the networks it names: most accurate, close to it, cheapest."""
    rows = [row for row in front.iter_rows(named=True) if row.get(size_metric(study)) is not None]
    if not rows:
        return "There is no answer yet: no trial of this data set is complete.", ()
    objective, name, size = quality_objective(study.objectives), quality_name(study), size_metric(study)
    best = _best(study, rows)
    margin = CLOSE_POINTS if is_share(name) else CLOSE_RELATIVE * abs(best[name])

    def worse(row: Row) -> float:
        return signed(objective, row[name])

    close = min((r for r in rows if worse(r) - worse(best) <= margin + 1e-12), key=lambda r: r[size])
    cheapest = min(rows, key=lambda row: (row[size], worse(row)))
    top = "Most accurate" if is_share(name) else f"Best {spell_metric(name)}"
    allowance = "1 point" if is_share(name) else f"{CLOSE_RELATIVE:.0%}"
    chosen = {cheapest["trial"]: ("Cheapest on the front", cheapest)}
    chosen[close["trial"]] = (f"Cheapest within {allowance} of the best", close)
    chosen[best["trial"]] = (top if close is not best else _alone(rows, best, size, top, allowance), best)
    picks = tuple(_pick(study, role, row, best) for role, row in reversed(chosen.values()))
    return _answer(study, dataset, best, close, _beside(rows, best, size, allowance)), picks


def best_row(study: Study, front: pl.DataFrame) -> Row | None:
    """Return the row of a data set's front that the summary calls the best, or None if there is none."""
    rows = [row for row in front.iter_rows(named=True) if row.get(size_metric(study)) is not None]
    return _best(study, rows) if rows else None


def _best(study: Study, rows: Sequence[Row]) -> Row:
    """Return the best of `rows` in quality; of equal ones, the smaller."""
    name, size = quality_name(study), size_metric(study)
    return min(rows, key=lambda row: (signed(quality_objective(study.objectives), row[name]), row[size]))


def _alone(rows: Sequence[Row], best: Row, size: str, top: str, allowance: str) -> str:
    """Return the role of the best network if no cheaper one is close to it or none exists."""
    if len(rows) == 1:
        return "The only network on the front"
    cheaper = any(row[size] < best[size] for row in rows)
    return f"{top}; none cheaper within {allowance}" if cheaper else f"{top}; none on the front is cheaper"


def _beside(rows: Sequence[Row], best: Row, size: str, allowance: str) -> str:
    """Return the end of the answer if the best network is also the cheapest one close to it."""
    if len(rows) == 1:
        return ". It is the only network on the front, so no cheaper one is compared with it."
    if not any(row[size] < best[size] for row in rows):
        return ". No network on the front is cheaper."
    return f", and no cheaper network on the front comes within {allowance} of it."


def _answer(study: Study, dataset: str, best: Row, close: Row, beside: str) -> str:
    name, size = quality_name(study), size_metric(study)
    split = f"{close['split']} {name.replace('_', ' ')}"
    unit = spell_metric(size)
    if close["trial"] == best["trial"]:
        return (
            f"On {dataset}, {network(study, best)} reaches {quantity(name, best[name])} {split} with "
            f"{quantity(size, best[size])} {unit}{beside}"
        )
    return (
        f"On {dataset}, {network(study, close)} reaches {quantity(name, close[name])} {split} with "
        f"{quantity(size, close[size])} {unit}: {_gap(name, close, best)} the best network, at "
        f"1/{ratio(best[size] / close[size])} of its {unit}."
    )


def _gap(name: str, row: dict[str, Any], best: dict[str, Any]) -> str:
    gap = abs(row[name] - best[name])
    if gap == 0:
        return "level with"
    side = "below" if row[name] < best[name] else "above"
    return f"{100 * gap:.2f} points {side}" if is_share(name) else f"{gap:.3g} {side}"


def _pick(study: Study, role: str, row: dict[str, Any], best: dict[str, Any]) -> Pick:
    name, size = quality_name(study), size_metric(study)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    spread = f"{quantity(name, low)} to {quantity(name, high)}, n = {row['replicates']}" if low is not None else "n = 1"
    if equal_seeds(low, high):
        spread = f"{row['replicates']} seeds equal"
    share = f", 1/{ratio(best[size] / row[size])} of the best" if row[size] < best[size] else ""
    return Pick(
        role=role,
        network=network(study, row),
        quality=quantity(name, row[name]),
        cost=f"{quantity(size, row[size])} {spell_metric(size)}{share}",
        detail=f"{row['split']}, {spread}; {compact(row.get('flops'))} FLOPs, Q {ratio(row.get('q'))}",
    )


def state_counts(trials: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Return {stage: {state: number of trials}}, stages in the order search, confirm; absent ones are omitted."""
    counts: dict[str, dict[str, int]] = {}
    for stage in ("search", "confirm"):
        states = trials.filter(pl.col("stage") == stage)["state"].to_list() if trials.height else []
        if states:
            counts[stage] = {state: count for state, count in count_states(states).items() if count}
    return counts


def counts_text(counts: dict[str, dict[str, int]]) -> str:
    """Return `24 search trials (15 complete, 9 stopped early), 5 confirmation trials (5 complete)`."""
    parts = []
    for stage, states in counts.items():
        total = sum(states.values())
        listed = ", ".join(f"{number} {STATE_WORDS[state]}" for state, number in states.items())
        word = "confirmation" if stage == "confirm" else "search"
        parts.append(f"{total:,} {word} trial{'s' * (total != 1)} ({listed})")
    return ", ".join(parts) or "no trials"
