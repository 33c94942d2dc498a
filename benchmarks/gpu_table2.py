"""One row of Table 2 of paper A on this device, at fewer epochs, beside what the paper prints."""

from __future__ import annotations

import statistics
import time

from gpu_setup import MADE_UP, Asked, Table, cut, mnist
from record import ROOT

from ablate.core.trial import TrialConfig, TrialKey
from ablate.engine.training import FamilySettings, train
from ablate.study import VARIANT, parse_study

FILE = ROOT / "search_spaces" / "papers" / "minimal_transformer_table2.yaml"
EPOCHS, REPORT_EVERY, LABEL = 27, 9, "mnist"
COLUMNS = (
    "row",
    "epoch",
    "seeds",
    "metric",
    "mean",
    "lowest",
    "highest",
    "published_after_500_epochs",
    "difference",
    "seconds",
)


def measure_row(asked: Asked) -> None:
    """Write the metrics of the row at each report; with made-up data there is nothing to compare them with."""
    data, name = mnist(asked)
    if asked.small:
        data = cut(data, train=512, test=64)
    table = Table(asked, "table2", COLUMNS, data=name)
    trial = row_trial(asked)
    published = {} if name == MADE_UP or asked.small else published_values(asked.row)
    begun = time.perf_counter()
    for report in train(trial, device=asked.device, data=data):
        seconds = time.perf_counter() - begun
        for metric in ("val_accuracy", "val_loss", "train_accuracy", "train_loss"):
            values = [each[metric] for each in report.metrics]
            mean, printed = statistics.fmean(values), published.get(metric)
            beside = {} if printed is None else {"published_after_500_epochs": printed, "difference": mean - printed}
            about = {"row": asked.row, "epoch": report.epoch, "seeds": len(values), "metric": metric}
            table.add(**about, mean=mean, lowest=min(values), highest=max(values), seconds=seconds, **beside)


def row_trial(asked: Asked) -> TrialConfig:
    """Return the row's trial of the study file, shortened."""
    study = parse_study(FILE.read_text(encoding="utf-8"), str(FILE))
    names = [row.name for row in study.rows]
    if asked.row not in names:
        raise SystemExit(f"--row {asked.row!r}: the table has {', '.join(map(repr, names))}")
    settings = study.settings_of(LABEL, {VARIANT: asked.row})
    assert isinstance(settings, FamilySettings)
    shorter = {"epochs": 1, "steps_per_epoch": 2} if asked.small else {"epochs": EPOCHS, "report_every": REPORT_EVERY}
    training = settings.training.model_copy(update=shorter)
    return TrialConfig(
        key=TrialKey(study=study.name, dataset=LABEL, number=0),
        stage="search",
        settings=settings.model_copy(update={"training": training}),
        task=study.task(LABEL),
        seeds=study.seeds_of(asked.row),
        study_seed=study.seed,
        protocol=study.protocol,
    )


def published_values(row: str) -> dict[str, float]:
    """Return what the paper prints for a row, by metric."""
    study = parse_study(FILE.read_text(encoding="utf-8"), str(FILE))
    assert study.compare is not None
    return {metric: value.value for metric, by in study.compare.published.items() if (value := by[LABEL].get(row))}
