"""One data set's trials as an Optuna storage, rebuilt from the ledger alone."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from ablate.tuning.sampling.bounded_history import BoundedHistory

STUDY_NAME = "ablate"
ALL = frozenset(TrialState)
_THEN = datetime(2000, 1, 1, tzinfo=UTC)  # samplers never read times


class _Told(FrozenTrial):
    """A trial that has its constraints at hand: TPE asks each trial for them once for each parameter."""

    violations: dict[str, float]

    @property
    def constraints(self) -> dict[str, float]:
        """The violations by constraint."""
        return self.violations


def freeze(
    *,
    number: int,
    state: TrialState,
    inner: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    values: Sequence[float] | None = None,
    intermediate: Mapping[int, float] | None = None,
    attrs: Mapping[str, Any] | None = None,
    constraints: Mapping[str, float] | None = None,
) -> FrozenTrial:
    """Return a trial as an Optuna FrozenTrial; its id is its number in the ledger."""
    trial = _Told(
        number=number,
        trial_id=number,
        state=state,
        value=None,
        values=None if values is None else list(values),
        datetime_start=_THEN,
        datetime_complete=_THEN if state.is_finished() else None,
        params=dict(inner),
        distributions=dict(distributions),
        user_attrs={},
        system_attrs=dict(attrs or {}),
        intermediate_values=dict(intermediate or {}),
    )
    trial.violations = dict(constraints or {})
    for name, violation in trial.violations.items():
        trial.set_constraint(name, violation)
    return trial


class LedgerStorage(BaseStorage):
    """What a sampler may read: trials by number, the study attributes they set, and the trial being asked.

    `drop` discards the trial being asked and its attributes, so a suggestion depends only on the ledger and the seed.
    With `bounded`, the sampler is shown the trials that it chooses.
    """

    def __init__(self, directions: Sequence[StudyDirection], *, bounded: BoundedHistory | None = None) -> None:
        self._directions = list(directions)
        self.bounded = bounded
        self._shown: dict[frozenset[TrialState], list[FrozenTrial]] = {}  # by states; TPE asks once per parameter
        self._trials: dict[int, FrozenTrial] = {}
        self._attrs: dict[str, Any] = {}
        self._asked: FrozenTrial | None = None
        self._before: dict[str, Any] = {}

    def put(self, trial: FrozenTrial, study_attrs: Mapping[str, Any] | None = None) -> None:
        """Add a trial, or replace the one with its number; trials are added in increasing order of number."""
        self._trials[trial.number] = trial
        self._attrs.update(study_attrs or {})
        self._shown = {}
        if self.bounded is not None:
            self.bounded.put(trial)

    def has(self, number: int) -> bool:
        """Return whether trial `number` has been added."""
        return number in self._trials

    def open(self, number: int) -> None:
        """Begin a suggestion for trial `number`."""
        self._before = dict(self._attrs)
        self._asked = freeze(number=number, state=TrialState.RUNNING, inner={}, distributions={})

    def drop(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Discard the trial being asked and return the trial and study attributes that the sampler set."""
        asked, after = self._asked, self._attrs
        assert asked is not None
        self._asked, self._attrs = None, self._before
        return asked.system_attrs, {k: v for k, v in after.items() if k not in self._before or self._before[k] != v}

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Return the number given to `open`."""
        if template_trial is not None or self._asked is None:
            raise NotImplementedError("trials enter by put() and open()")
        return self._asked.number

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Set a parameter of the trial being asked."""
        asked = self._open_trial(trial_id)
        asked.params = {**asked.params, param_name: distribution.to_external_repr(param_value_internal)}
        asked.distributions = {**asked.distributions, param_name: distribution}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of the trial being asked."""
        asked = self._open_trial(trial_id)
        asked.system_attrs = {**asked.system_attrs, key: value}

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a user attribute of the trial being asked."""
        asked = self._open_trial(trial_id)
        asked.user_attrs = {**asked.user_attrs, key: value}

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial by number; raise KeyError."""
        return self._asked if self._asked is not None and self._asked.number == trial_id else self._trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials that the sampler is shown by number, the one being asked last."""
        asked_for = frozenset(state for state in TrialState if states is None or state in states)
        if ALL not in self._shown:
            chosen = None if self.bounded is None else self.bounded.chosen()
            self._shown[ALL] = list(self._trials.values()) if chosen is None else [self._trials[n] for n in chosen]
        if asked_for not in self._shown:
            self._shown[asked_for] = [t for t in self._shown[ALL] if t.state in asked_for]
        trials = list(self._shown[asked_for])
        if self._asked is not None and self._asked.state in asked_for:
            trials.append(self._asked)
        return copy.deepcopy(trials) if deepcopy else trials

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set a study attribute; it is kept only if the suggestion becomes a trial."""
        self._attrs = {**self._attrs, key: value}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the study's attributes."""
        return dict(self._attrs)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return an empty mapping: there are none."""
        return {}

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return one direction per objective."""
        return list(self._directions)

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return 0: there is one study."""
        return 0

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the one study's name."""
        return STUDY_NAME

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return an empty list: the study is loaded by name."""
        return []

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the ledger decides what exists, and `put` sets a trial's result")

    create_new_study = delete_study = set_study_user_attr = _refuse
    set_trial_state_values = set_trial_intermediate_value = _refuse

    def _open_trial(self, trial_id: int) -> FrozenTrial:
        assert self._asked is not None
        assert self._asked.number == trial_id
        return self._asked
