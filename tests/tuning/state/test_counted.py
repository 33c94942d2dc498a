"""Which report of a trial counts follows from its reports alone: in memory, from the ledger, and while it trains."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from ablate.core.objectives import mean
from ablate.core.trial import BestReport, Decision, Report, with_test
from ablate.engine.training.progress import Counted
from ablate.ledger import ReportRecord, counted_reports
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress
from support.small_training import trial

VALUES = (0.1, 0.2, 0.2, 0.5, math.nan, math.inf)


def by_hand(best: BestReport, values: list[float]) -> int:
    """Return the place of the first best finite value, or the last place."""
    finite = [
        (value if best.direction == "minimize" else -value, k) for k, value in enumerate(values) if math.isfinite(value)
    ]
    return min(finite)[1] if finite else len(values) - 1


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("draw", range(40))
def test_memory_ledger_and_training_count_the_same_report(direction: str, draw: int) -> None:
    draws = np.random.default_rng(draw)
    best = BestReport(metric="val_m", direction=direction)  # type: ignore[arg-type]
    config = replace(trial(), best=best)
    length = int(draws.integers(1, 7))
    rows = [[float(draws.choice(VALUES)) for _ in config.seeds] for _ in range(length)]
    reports = [
        Report(
            epoch=2 * k + 1,
            metrics=tuple(
                {"val_m": value, "val_k": float(k)} | ({"test_m": 7.0 + r} if k == length - 1 else {})
                for r, value in enumerate(row)
            ),
            wall_seconds=k + 1.0,
            final=k == length - 1,
        )
        for k, row in enumerate(rows)
    ]
    place = by_hand(best, [mean(row) for row in rows])
    wanted = [with_test(m, last) for m, last in zip(reports[place].metrics, reports[-1].metrics, strict=True)]

    progress, training = TrialProgress(config=config, size={}, sampler_state={}), Counted(config, None)
    records = []
    for report in reports:
        progress.take(ReportSummary.of(config.key, report, Decision.CONTINUE))
        training.take(report)
        for r, metrics in enumerate(report.metrics):
            records.append(
                ReportRecord(
                    rowid=len(records), key=config.key, replicate=r, epoch=report.epoch, metrics=dict(metrics),
                    diverged=False, final=report.final, decision=Decision.CONTINUE, checkpoint=None,
                    wall_seconds=report.wall_seconds, driver_term=1, created_at=0.0,
                )
            )  # fmt: skip
    counted = counted_reports(config, records)
    assert str([dict(m) for m in progress.replicates]) == str([row.metrics for row in counted]) == str(wanted)
    assert [key for key, _ in groupby(row.epoch for row in counted)] == [reports[place].epoch] == [training.epoch]
    assert progress.epoch == reports[-1].epoch
    assert progress.metric("wall_seconds") == length, "of the whole trial"
    assert progress.metric("test_m") == 7.5
