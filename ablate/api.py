"""The Python interface: run, read and continue studies from a script or a notebook (docs/python.md)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console

from ablate.base.errors import RequestError
from ablate.base.files import ensure_home
from ablate.core.objectives import is_evaluated, is_higher_better, unknown_direction
from ablate.driver import campaign_driver
from ablate.driver.alone import only_study
from ablate.driver.options import RunOptions, limits_of
from ablate.driver.plain_values import study_text
from ablate.driver.run import search as run_study
from ablate.functions.code.module import CODE, find_code, import_path, kept_if_refused, write_module
from ablate.results.comparison.rows import verdicts
from ablate.results.report import draw_figures
from ablate.results.trials.tables import reports_table, trials_table
from ablate.studies.campaign_status import status_of
from ablate.studies.ledger_campaign import Verdict, read_campaign
from ablate.studies.locations import RUNS
from ablate.studies.model_export import load_model
from ablate.studies.pick import Best, best_of
from ablate.studies.report import rebuild, results_of_page
from ablate.studies.stored import Stored, read_study, require_compared, result_rows, search_front

if TYPE_CHECKING:
    from ablate.results.rendering.drawing import Figure

ensure_home()
DIRECTIONS = {"max": "maximize", "maximize": "maximize", "min": "minimize", "minimize": "minimize"}


NOT_GIVEN = object()  # no default of a range; None is one
When = Mapping[str, object] | None  # other settings, by dotted name, and their value or a list of values


def choice(*values: object, when: When = None, default: object = NOT_GIVEN) -> dict[str, Any]:
    """Return a range of these values; with `when`, it is searched only where other settings have these values.

    The defaults of all ranges are your settings: the first trial has them, and the answer says whether it was beaten.
    """
    return {"choices": list(values)} | _options(when, default)


def real(
    low: float,
    high: float,
    *,
    log: bool = False,
    step: float | None = None,
    when: When = None,
    default: object = NOT_GIVEN,
) -> dict[str, Any]:
    """Return a range of real numbers from `low` to `high`, on a log scale with `log`; `default` as in `choice`."""
    return _range("float", low, high, log=log, step=step) | _options(when, default)


def whole(
    low: int,
    high: int,
    *,
    log: bool = False,
    step: int | None = None,
    when: When = None,
    default: object = NOT_GIVEN,
) -> dict[str, Any]:
    """Return a range of whole numbers from `low` to `high`; `default` as in `choice`."""
    return _range("int", low, high, log=log, step=step) | _options(when, default)


def _range(kind: str, low: float, high: float, *, log: bool, step: float | None) -> dict[str, Any]:
    return {kind: [low, high], "log": log} | ({} if step is None else {"step": step})


def _options(when: When, default: object) -> dict[str, Any]:
    return ({} if when is None else {"when": dict(when)}) | ({} if default is NOT_GIVEN else {"default": default})


@dataclass(frozen=True, repr=False)
class StudyHandle:
    """A study by its name: its tables as of now, its report, and its continuation."""

    name: str
    options: RunOptions

    def run(self) -> StudyHandle:
        """Continue the study until it is finished, with the study file that its ledger holds."""
        text = self._stored().record.file_text
        return _run(self.name, text, self.options, self.options.home(self.name) / "study.yaml")

    def trials(self) -> pl.DataFrame:
        """Return one row per trial (docs/tables.md)."""
        return trials_table(self._stored().snapshot)

    def reports(self) -> pl.DataFrame:
        """Return one row per reported epoch and replicate (docs/tables.md)."""
        return reports_table(self._stored().snapshot)

    def front(self, dataset: str | None = None) -> pl.DataFrame:
        """Return the confirmed networks with the means of their fresh seeds, or the front of the search without any."""
        found = self._stored()
        trials, reports = trials_table(found.snapshot), reports_table(found.snapshot)
        rows = trials if dataset is None else trials.filter(pl.col("dataset") == dataset)
        shown = result_rows(found.study, rows, reports)
        return shown if shown.height else search_front(found.study, rows)

    @property
    def best(self) -> Best:
        """Return the best trial on the first objective: `.settings`, `.metrics`; raise RequestError if there is none.

        `study.best("digits")` is that of one data set.
        """
        return best_of(self._stored())

    def load(self, trial: int | None = None, *, dataset: str | None = None, replicate: int = 0) -> SimpleNamespace:
        """Return what a trial of a training function has kept, by name: `study.load(7).model`.

        Without `trial` it is the best one. A module is its `state_dict`, a booster or a model of Keras is itself. No
        code of the function runs, and nothing is unpickled. Raises RequestError if there is no such trial.
        """
        return load_model(self.name, self.options, number=trial, dataset=dataset, replicate=replicate)

    def report(self) -> Path:
        """Write the report from the ledger and return the path of its page."""
        return rebuild(self.name, self.options)[1]

    def verdicts(self) -> pl.DataFrame:
        """Return the verdict on each variant of a comparison: its paired difference from the baseline, and its claims.

        The columns are those of `comparison.csv` (docs/compare.md). Without `compare.margin` verdicts are null. Raises
        RequestError for a study without `compare`.
        """
        found = self._stored()
        require_compared(found)
        return verdicts(found.results)

    def figures(self) -> list[Figure]:
        """Return the figures of the report's page; a notebook shows each as a picture."""
        return draw_figures(results_of_page(self._stored()))

    def _stored(self) -> Stored:
        return read_study(self.name, self.options)

    def _repr_html_(self) -> str:
        """Return the front as a table and the first figure, for notebooks."""
        shown = [base64.b64encode(figure._repr_png_()).decode() for figure in self.figures()[:1]]
        pictures = "".join(f'<img style="max-width: 100%" src="data:image/png;base64,{text}">' for text in shown)
        return f"<p>Study <b>{self.name}</b></p>{self._short(self.front())._repr_html_()}{pictures}"

    def __repr__(self) -> str:
        """Return the name, without the options."""
        return f"StudyHandle({self.name!r})"

    def _short(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the columns that a reader compares: trial, settings, size and metrics."""
        settings = [name for name in rows.columns if "." in name and not name.startswith("metric.")]
        metrics = [name for name in rows.columns if is_evaluated(name)]
        return rows.select("dataset", "trial", "replicates", *settings, "params", *metrics)


def search(
    train: Callable[..., Any] | str,
    *,
    name: str,
    space: Mapping[str, Any] | None = None,
    objectives: Sequence[str] = ("max val_accuracy",),
    epochs: int | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    confirm: int | None = 3,
    replicates: int = 1,
    seed: int = 0,
    sampler: str | Mapping[str, Any] | None = None,
    scheduler: str | Mapping[str, Any] = "forecast",
    constraints: Sequence[str] = (),
    runs_dir: Path | str = RUNS,
    **options: Any,
) -> StudyHandle:
    """Search the space of a training function, confirm the front on `confirm` fresh seeds, and return the study.

    `train` is `train(config, run)`, or its import path (docs/functions.md). A function of a notebook or of the script
    that runs is written to `RUNS/NAME/code/` with all that it uses. `space` has a value or a range for each name that
    the function reads, `objectives` are texts such as "val_auc", "max val_score", "min params log" or "min val_loss
    best": then the best report of a trial counts, not the last one. `options` are those of `ablate search`:
    `executor="local"`, `gpus=8`, `storage=...`, `tracker="none"`, and the others. The same call continues a study.
    Raises AblateError, as the command does.
    """
    asked = RunOptions(runs_dir=Path(runs_dir), **options)
    content: dict[str, Any] = {"study": name, "seed": seed, "trainable": "", "config": dict(space or {})}
    content |= {} if epochs is None else {"epochs": epochs}
    content |= {
        "objectives": [_objective(text) for text in objectives],
        "sampler": {"name": sampler} if isinstance(sampler, str) else dict(sampler or {}),
        "scheduler": {"name": scheduler} if isinstance(scheduler, str) else dict(scheduler),
        "constraints": list(constraints),
        "replicates": replicates,
        "budget": limits_of(trials, time),
        "confirm": None if confirm is None else {"replicates": confirm},
    }
    code = asked.home(name) / CODE
    with only_study(name), kept_if_refused(code):
        content["trainable"] = _path(train, code)
        return _run(name, study_text(content), asked, Path(f"{name}.yaml"))


def compare(
    file: Path | str, *, runs_dir: Path | str = RUNS, scale: float | None = None, **options: Any
) -> StudyHandle:
    """Run the designed comparison of a study file and return the study; `options` are those of `ablate compare`."""
    asked = RunOptions(runs_dir=Path(runs_dir), **options)
    found = run_study(Path(file), asked, Console(), scale=scale)
    return StudyHandle(found.study.name, asked)


@dataclass(frozen=True)
class CampaignHandle:
    """A campaign that is open: changes are judged in the order of the calls (docs/campaign.md)."""

    name: str
    options: RunOptions

    def __enter__(self) -> CampaignHandle:
        """Return itself: every call drives the campaign by itself, so there is nothing to end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def judge(self, settings: Mapping[str, Any] | None = None, **more: Any) -> Verdict:
        """Judge a change from the champion: settings by dotted name, or `part="mlp"`; `note`, `by` and `runs` as typed.

        Raises RequestError for a change that cannot be judged.
        """
        return self.judge_all([{"settings": settings, **more}])[0]

    def judge_all(self, changes: Sequence[Mapping[str, Any]], *, wait: float | None = None) -> list[Verdict]:
        """Judge several changes from the same champion beside each other; return their verdicts in this order."""
        return campaign_driver.judge(self.name, self.options, changes, Console(quiet=True), wait=wait)

    def status(self) -> dict[str, Any]:
        """Return champion, candidates by state, and what is spent."""
        return status_of(read_campaign(self.name, self.options))

    def close(self) -> dict[str, Any]:
        """Compare the last champion with the first one on fresh seeds, once; return the status with the closing."""
        return status_of(campaign_driver.close(self.name, self.options, Console(quiet=True)))


def campaign(file: Path | str, *, runs_dir: Path | str = RUNS, **options: Any) -> CampaignHandle:
    """Open the campaign of a study file, or continue it; `options` are those of `ablate judge`."""
    asked = RunOptions(runs_dir=Path(runs_dir), **options)
    return CampaignHandle(campaign_driver.open_campaign(Path(file), asked, Console(quiet=True)).study.name, asked)


def load_study(name: str, *, runs_dir: Path | str = RUNS, **options: Any) -> StudyHandle:
    """Return a study that exists; raise RequestError with the known names if it does not."""
    study = StudyHandle(name, RunOptions(runs_dir=Path(runs_dir), **options))
    study._stored()
    return study


def _run(name: str, text: str, options: RunOptions, file: Path) -> StudyHandle:
    with only_study(name):
        find_code(options.home(name) / CODE)
        found = run_study(file, options, Console(), text=text)
    return StudyHandle(found.study.name, options)


def _path(train: Callable[..., Any] | str, folder: Path) -> str:
    if isinstance(train, str):
        return train
    return import_path(train) or write_module(train, folder)


def _objective(text: str) -> dict[str, Any]:
    words = text.split()
    direction = DIRECTIONS[words.pop(0)] if len(words) > 1 and words[0] in DIRECTIONS else None
    metric, further = (words or [""])[0], words[1:]
    if not metric or sorted({"best", "log"} & {*further}) != sorted(further):
        raise RequestError(
            f"objective {text!r}: write 'METRIC', 'max METRIC' or 'min METRIC', then 'log', 'best', both or none"
        )
    if direction is None and is_higher_better(metric, ()) is None:
        raise RequestError(f"objective {text!r}: {unknown_direction(metric)}: write 'max {text}' or 'min {text}'")
    found = {"metric": metric, "direction": direction}
    return found | ({"log": True} if "log" in further else {}) | ({"read": "best"} if "best" in further else {})
