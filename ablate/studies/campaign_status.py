"""The state of a campaign in values and in words, and what a candidate costs (docs/campaign.md)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ablate.base.plain_text import counted, finite
from ablate.core.objectives import on_test, signed
from ablate.core.trial import CAMPAIGN_SEED_BASE, CONFIRM_SEED_BASE, TrialState
from ablate.results.statistics.intervals import Interval, t_interval
from ablate.studies.ledger_campaign import LedgerCampaign

# Measured by simulation (docs/measured/calibration.md): the least correlation of seeds; the runs of a change that does
# nothing, of one of 2 sd and of one of 1 sd; and of ten such last ones, how many are found as the 50th candidate.
PLANS = (
    (0.9, 1.8, 9, 16, 8),
    (0.7, 2.4, 10, 16, 7),
    (0.5, 2.9, 11, 17, 6),
    (0.3, 3.2, 12, 17, 5),
    (0.0, 3.6, 12, 17, 5),
)
FRUGAL, THOROUGH = (0.0, 2.6, 11, 11, 3), (0.0, 4.5, 12, 20, 6)


def _sd(found: LedgerCampaign) -> float:
    """Return the standard deviation of a run over seeds, NaN before two runs have ended."""
    base = found.campaign.reference.runs.values()
    values = [value for run in base if run.state.finished and (value := found.campaign.value(run)) is not None]
    own = t_interval(values)
    squares, df = found.campaign.pool.squares, found.campaign.pool.df
    total = df + max(own.n - 1, 0)
    return math.sqrt((squares + own.sd**2 * (own.n - 1)) / total) if own.n > 1 else math.nan


def plan_line(found: LedgerCampaign) -> str:
    """Return what one standard deviation is, and what candidates cost."""
    sd, beta = _sd(found), float(found.campaign.pool.beta())
    asked = found.campaign.asked
    if not math.isfinite(sd):
        return "The reference has no runs yet."
    if sd == 0:
        return "All runs have equal numbers, so no gain can be told from luck. Does the training use its seed?"
    head = f"1 sd of a run = {found.amount(sd)}{found.unit}."
    if asked.mode == "explore":
        return f"{head} A change that does nothing costs about 1.7 runs; every third such campaign keeps one."
    row = next(row for row in PLANS if beta >= row[0])
    row = {"frugal": FRUGAL, "thorough": THOROUGH}.get(asked.effort or "normal", row)
    return (
        f"{head} About {row[1]} runs for a change that does nothing, {row[2]} for 2 sd"
        f" (= {found.amount(2 * sd)}{found.unit}), {row[3]} for 1 sd, of which {row[4]} in 10 are found."
    )


def _closing(found: LedgerCampaign) -> tuple[Interval, list[int]] | None:
    """Return the gain of the last champion over the first on the closing's seeds, and the runs that failed.

    None until all have ended. A run that diverged counts as `campaign.diverged` says.
    """
    of, ended = found.campaign, found.campaign.closed
    last, first = of.champion.runs, of.arms[0].runs
    if ended is None or of.champion is of.arms[0]:
        return None
    metric = on_test(of.quality.metric) if of.asked.close.test else of.quality.metric
    values: dict[int, dict[int, float]] = {}
    runs = [r for r in found.search.trials.values() if CONFIRM_SEED_BASE <= r.config.seeds[0] < CAMPAIGN_SEED_BASE]
    failed = []
    for run in runs:
        value = -signed(of.quality, run.metric(metric)) if run.state is TrialState.COMPLETE else of.value(run)
        value = math.nan if value is None else value
        failed += [] if math.isfinite(value) else [run.number]
        values.setdefault(run.config.seeds[0], {})[int(run.config.source or 0)] = value
    pair = (next(iter(last.values())).number, next(iter(first.values())).number)
    gains = [by[pair[0]] - by[pair[1]] for by in values.values() if set(pair) <= by.keys()]
    return (t_interval(gains), failed) if gains and all(run.state.finished for run in runs) else None


def status_of(found: LedgerCampaign) -> dict[str, Any]:
    """Return the state of the campaign as plain values."""
    of, closing = found.campaign, _closing(found)
    states = Counter(arm.state for arm in of.arms[1:])
    numbers = {} if closing is None else {n: finite(getattr(closing[0], n)) for n in ("mean", "low", "high", "n")}
    values = None if closing is None else {**numbers, "failed": closing[1]}
    return {
        "campaign": found.study.name,
        "closed": of.closed is not None,
        "champion": {**found.champion(), "settings": dict(of.champion.settings)},
        "reign": of.reign,
        "k": of.k,
        "candidates": dict(states),
        "spent": found.spent(),
        "sd": finite(_sd(found)),
        "correlation": float(of.pool.beta()),
        "closing": values,
    }


def status_lines(found: LedgerCampaign) -> list[str]:
    """Return the state of the campaign in words."""
    of, values = found.campaign, status_of(found)
    ended = [arm.looked for arm in of.arms if arm.state == "discard"]
    mean = f" (mean {sum(ended) / len(ended):.1f} runs)" if ended else ""
    words = {"keep": "kept", "discard": f"discarded{mean}"}
    counts = ", ".join(f"{n} {words.get(state, state)}" for state, n in sorted(values["candidates"].items()))
    error = "" if of.asked.mode == "explore" else f", {values['spent']['error']:.1%} of 5% spent"
    runs, candidates = counted(values["spent"]["runs"], "run"), counted(len(of.arms) - 1, "candidate")
    lines = [
        f"{runs}, {candidates}{': ' * bool(counts)}{counts}."
        f" Since the last restart: {counted(of.k, 'candidate')}{error}. Champion: {found.name(of.champion)}.",
        plan_line(found),
    ]
    if of.closed is not None:
        lines.append(_closing_line(found))
    return lines


def _closing_line(found: LedgerCampaign) -> str:
    of, closing = found.campaign, _closing(found)
    split = "Test" if of.asked.close.test else "Validation"
    if of.champion is of.arms[0]:
        return "Closed: no candidate was kept, so nothing is claimed."
    if closing is None:
        return f"Closing: {split.lower()} runs are missing. To continue: ablate campaign close {found.study.name}"
    gain, failed = closing
    if failed:
        name, numbers = found.study.name, ", ".join(map(str, failed))
        told = f"{split}, {gain.n} fresh seeds: no gain is claimed, because these trials failed: {numbers}."
        return f"{told} If the machine is at fault: ablate retry {name} {failed[0]}, then ablate campaign close {name}"
    half = found.amount((gain.high - gain.low) / 2)
    return f"{split}, {gain.n} fresh seeds: gain {found.amount(gain.mean)} ± {half}{found.unit} over the start."
