"""The initial view of a study on MLflow's page: the kind of experiment, columns and charts, as tags."""

from __future__ import annotations

import json
from typing import Any

from ablate.study import Study
from ablate.tracking.contents import RANK, study_note_text

VIEW = "ablate"  # the key of the view in the page's address: `viewStateShareKey=ablate`
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
SECTION = "ablate"
MOST_COLUMNS = 12  # maximum number of settings; more would hide the metrics
RUNS_IN_CHART = 100


def experiment_tags(study: Study) -> dict[str, str]:
    """Return the tags of a study's experiment; MLflow 3 reads them (`mlflow.sharedViewState.KEY` holds a page's state).

    The view lists the trials, the best first (RANK). Its columns are metrics and searched settings.
    """
    first = study.objectives[0]
    searched = (*study.space.names(), *study.tuned.names())[:MOST_COLUMNS]
    metrics = list(dict.fromkeys([*(o.metric for o in study.objectives), "params", "test_accuracy"]))
    view = {
        "searchFilter": "tags.`ablate.kind` = 'trial'",
        "orderByKey": f"metrics.`{RANK}`",
        "orderByAsc": True,
        "selectedColumns": [
            "attributes.`Description`",
            *(f"metrics.`{name}`" for name in metrics),
            *(f"params.`{name}`" for name in searched),
            *(f"tags.`{name}`" for name in ("ablate.stage", "ablate.network", "ablate.dataset")),
        ],
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [{"uuid": SECTION, "name": study.name, "display": True, "isReordered": False}],
        "compareRunCharts": _charts(study),
    }
    return {
        "ablate.study": study.name,
        "mlflow.note.content": study_note_text(study),
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.experiment.primaryMetric.name": first.metric,
        VIEW_TAG: json.dumps(view),
    }


def _charts(study: Study) -> list[dict[str, Any]]:
    """Return a learning curve, the first two objectives against each other, and the settings beside the result."""
    first = study.objectives[0].metric
    charts = [_chart("LINE", metricKey=first, selectedMetricKeys=[first])]
    if len(study.objectives) > 1:
        x, y = ({"key": metric, "type": "METRIC"} for metric in (study.objectives[1].metric, first))
        charts.append(_chart("SCATTER", xaxis=x, yaxis=y))
    # MLflow excludes trials without a setting from the chart, so every trial has each of these.
    if searched := [name for name, spec in study.space.ranges.items() if not spec.when][:MOST_COLUMNS]:
        charts.append(_chart("PARALLEL", selectedParams=searched, selectedMetrics=[first]))
    return charts


def _chart(kind: str, **own: Any) -> dict[str, Any]:
    fixed = {"metricSectionId": SECTION, "deleted": False, "isGenerated": False, "runsCountToCompare": RUNS_IN_CHART}
    return {"uuid": f"{SECTION}-{kind.lower()}", "type": kind, **fixed, **own}
