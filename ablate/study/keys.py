"""The keys of a study file, each with its type, its default and a description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from ablate.core.config import Positive, Seeds, TaskConfig
from ablate.core.registry import FAMILY, read_task
from ablate.study.campaign_sections import OF_A_CAMPAIGN, Campaign
from ablate.study.comparison_sections import Compare, Part, Tune, Variant
from ablate.study.sections import (
    MOST_TRIALS,
    Budget,
    Command,
    Confirm,
    Constraint,
    DatasetSettings,
    Name,
    Names,
    Objective,
    SamplerConfig,
    SchedulerConfig,
    Sectioned,
    Start,
    constraint,
    labelled,
    trainable_name,
)

OWN_DATA = "data"  # label of the data set of a function of the user's that names none
OF_A_DESIGN: dict[str, Any] = {  # a comparison trains its whole design, in full, once
    "sampler": {"name": "design"},
    "scheduler": {"name": "none"},
    "confirm": None,
}


def _entry(value: Any) -> Any:
    return read_task(value) if isinstance(value, dict) else value


class StudyKeys(Sectioned):
    """What a study file says; `Study` adds what follows from it."""

    study: Name
    """Name of the study; its home is `runs/NAME`."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of every random stream of the study."""
    trainable: Annotated[str, BeforeValidator(trainable_name, json_schema_input_type=str | Command)] = FAMILY
    """What is tuned: `transformer`, your training function as an import path `mypkg.module:function`, or a command."""
    protocol: Literal["held_out", "paper"] = "held_out"
    """`held_out` validates on a part of the training data; `paper` validates on the test split, as the papers do."""
    datasets: Annotated[
        dict[Name, SerializeAsAny[Annotated[TaskConfig, BeforeValidator(_entry)]]],
        BeforeValidator(labelled, json_schema_input_type=dict[str, dict[str, Any] | None] | list[str]),
        Field(min_length=1),
    ]
    """Data sets by label, each with its own sampler history, rungs and front. The label is the default task."""
    settings: tuple[DatasetSettings, ...] = ()
    """Settings of some data sets, which override `model` and `training`."""
    variants: tuple[Variant, ...] = ()
    """A table of named architectures. The sampler chooses among its rows."""
    parts: dict[Name, Part] = Field(default_factory=dict)
    """Parts in place of `variants`: a row `complete`, and further rows by `compare.design`, such as `without-NAME`."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=4)] = (
        Objective(metric="val_accuracy", direction="maximize"),
        Objective(metric="params", direction="minimize", log=True),
    )
    """Objectives of the search, one to four."""
    sampler: SamplerConfig = SamplerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    start: tuple[Start, ...] = ()
    """Configurations that are tried first, such as `{model.depth: 2}`."""
    replicates: Seeds = 1
    """Seeds trained per search trial."""
    budget: Budget = Budget()
    constraints: tuple[
        Annotated[Constraint, BeforeValidator(constraint, json_schema_input_type=str | Constraint)], ...
    ] = ()
    confirm: Confirm | None = Confirm()
    """How the front is confirmed. Default: on three fresh seeds. `null`: not at all, and the report says so."""
    deterministic: Positive | None = None
    """Make the study the same at any concurrency: at most N trials of a data set run at once, unseen by each other."""
    tune: Tune | None = None
    """Tune some settings of every row of a comparison first. Default: all rows are trained with the file's settings."""
    compare: Compare | None = None
    """Train a whole design in full and show it beside published figures, instead of searching."""
    campaign: Campaign | None = None
    """Judge changes one after the other by `ablate judge`, instead of searching."""
    unit: Literal["epoch", "step", "round", "fold"] = "epoch"
    """What pages and commands call that after which a trial reports. It changes no number."""
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Reduce epochs, data and the averaged grid to this share. Every number is then marked as scaled."""
    only: Names | None = None
    """Run these data sets only."""

    @model_validator(mode="before")
    @classmethod
    def _designed(cls, data: Any) -> Any:
        """Fill in what a comparison or a campaign implies, and the data set of a function that reads its own data.

        `ablate.study.checks` refuses contradictions.
        """
        if not isinstance(data, dict):
            return data
        implied: Mapping[str, Any] = OF_A_DESIGN if data.get("compare") else {}
        if data.get("campaign") is not None:
            implied = OF_A_CAMPAIGN
        budget = data.get("budget", {})
        if implied and isinstance(budget, dict):
            data = {**data, "budget": {"trials": MOST_TRIALS, **budget}}
        own_data: dict[str, Any] = {} if data.get("trainable", FAMILY) == FAMILY else {"datasets": {OWN_DATA: {}}}
        return {**implied, **own_data, **data}
