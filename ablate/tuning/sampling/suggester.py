"""Asks a sampler for one data set until the suggestion is new, can be built and keeps the static constraints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from pydantic import ValidationError

from ablate.base.errors import RequestError
from ablate.base.randomness import stream
from ablate.core.config import DatasetFacts, NoSize, TrainableSettings
from ablate.core.objectives import constraint_text
from ablate.core.registry import SAMPLERS
from ablate.core.trial import TrialConfig, TrialKey, TrialState, place_of
from ablate.ledger import NewTrial
from ablate.study import VARIANT
from ablate.tuning.sampling.bounded_history import BoundedHistory
from ablate.tuning.sampling.known_costs import KnownCosts, broken_bound
from ablate.tuning.sampling.ledger_storage import STUDY_NAME, LedgerStorage
from ablate.tuning.sampling.request import SamplerRequest, SamplerTraits
from ablate.tuning.sampling.search_space import ENUMERATION_LIMIT, SearchSpace, decode, shuffled, walk
from ablate.tuning.sampling.sequences import SequenceEndedError, SequenceSampler
from ablate.tuning.sampling.trial_converter import TrialConverter
from ablate.tuning.sampling.twins import Measure, TwinSizes
from ablate.tuning.state.curves import Curves
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

SAMPLER_ATTEMPTS = 20
TOGETHER = 64  # unfinished trials for each suggestion that a sampler may make at once
RANDOM_ATTEMPTS = 1000


@dataclass(kw_only=True)
class Suggester:
    """The sampler of one data set, its history, and which configurations it has suggested.

    Of a comparison it suggests the variants `only`, one after the other, or all if there is none.
    """

    study: Study
    dataset: str
    measure: Measure
    facts: Callable[[], DatasetFacts]
    only: Sequence[str] = ()
    _seen: set[str] = field(default_factory=set)
    _further: list[dict[str, Any]] = field(default_factory=list)  # suggested together with the last one
    _refused: dict[str, str] = field(default_factory=dict)
    _passed: set[int | None] = field(default_factory=set)  # places of a design that have begun or were refused
    _designed: Mapping[int, Mapping[str, Any]] | None = None

    @cached_property
    def dimensions(self) -> SearchSpace:
        """The data set's space."""
        return SearchSpace.of(self.study.space_for(self.dataset))

    @cached_property
    def curves(self) -> Curves:
        """The reports of the search trials."""
        return Curves(study=self.study)

    @cached_property
    def _traits(self) -> SamplerTraits:
        return SamplerTraits.of(self.study.sampler.name)

    @cached_property
    def converter(self) -> TrialConverter:
        """The converter of trials for the sampler."""
        return TrialConverter.of(self.study, self.dimensions)

    @cached_property
    def history(self) -> LedgerStorage:
        """The storage that the sampler reads."""
        objectives, bound = len(self.study.objectives), None
        if (most := self._traits.most_trials) is not None:
            keys = stream(self.study.seed, self.dataset, 0, "sampler", "history")
            bound = BoundedHistory(objectives=objectives, keys=keys, most=most)
        return LedgerStorage([optuna.study.StudyDirection.MINIMIZE] * objectives, bounded=bound)

    @cached_property
    def _optuna(self) -> optuna.Study:
        return optuna.load_study(study_name=STUDY_NAME, storage=self.history, sampler=RandomSampler(seed=0))

    @cached_property
    def _twins(self) -> TwinSizes:
        return TwinSizes(study=self.study, dataset=self.dataset, measure=self.measure, facts=self.facts)

    @cached_property
    def _costs(self) -> KnownCosts:
        return KnownCosts(
            study=self.study, dataset=self.dataset, dimensions=self.dimensions, measure=self.measure, facts=self.facts
        )

    def left(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the trials of the comparison that are asked for and have not begun, by place, in order."""
        if self._designed is None:
            design = enumerate(self.study.design(self.dataset))
            asked = [(place, each) for place, each in design if self.asks_for(each[VARIANT])]
            if self.only:
                asked.sort(key=lambda each: self.only.index(each[1][VARIANT]))
            self._designed = dict(asked)
        return {place: each for place, each in self._designed.items() if place not in self._passed}

    def asks_for(self, variant: str | None) -> bool:
        """Return whether trials of a variant are to be trained."""
        return not self.only or variant in self.only

    def put(self, trial: TrialProgress, *, as_running: bool = False) -> None:
        """Add or update a trial for the sampler; `as_running` shows it as RUNNING whatever its state."""
        known = self.history.has(trial.number)
        shown = replace(trial, state=TrialState.RUNNING) if as_running else trial
        told = self.converter.to_frozen_trial(shown, self.curves)
        self.history.put(told, None if known else trial.sampler_state.get("study"))
        if not known:
            self._seen.add(self._configuration(trial.config.variant, trial.config.settings))
            self._passed.add(place_of(trial.sampler_state))

    def check(self) -> None:
        """Raise RequestError if the study's sampler, its options or its twins cannot work on this space."""
        self._sampler(0, 0, {}, {})
        self._twins.check()

    def suggest(self, number: int) -> NewTrial | None:
        """Return trial `number` with the sampler state that a restart needs, or None if the space is exhausted.

        The sampler is asked up to 20 times, each time with another seed. Then up to 1000 random points are drawn, and
        then the rest of a small finite space is enumerated. Refused points are not passed to the sampler, so that the
        suggestion depends on the ledger alone. Raises RequestError if nothing can be trained and no trial exists.
        """
        reasons: dict[str, int] = {}
        tried = 0
        for inner, state in self._proposals(number):
            tried += 1
            verdict = self._judge(number, inner)
            if isinstance(verdict, NewTrial):
                return replace(verdict, sampler_state={**state, "attempts": tried})
            self._passed.add(place_of(state))
            if verdict is not None:
                reasons[verdict] = reasons.get(verdict, 0) + 1
        if not self._seen and tried:
            most = max(reasons, key=lambda reason: reasons[reason], default="the space is empty")
            raise RequestError(
                f"data set {self.dataset!r}: none of {tried} suggested configurations can be trained, most often"
                f" because {most}. Widen the space or loosen the constraints."
            )
        return None

    def suggest_given(self, number: int, given: Mapping[str, Any]) -> NewTrial | str:
        """Return trial `number` with the settings `given`, the others the sampler's; or in words why there is none."""
        fixed = self.dimensions.encode(given)
        reason: str | None = None
        for tried, (inner, state) in enumerate(self._proposals(number, fixed), start=1):
            verdict = self._judge(number, inner, given)
            if isinstance(verdict, NewTrial):
                return replace(verdict, sampler_state={**state, "attempts": tried})
            reason = reason or verdict
            if set(inner) <= set(fixed):
                break
        return "it is in the study already" if reason is None else f"it cannot be trained because {reason}"

    def build(self, number: int, parameters: Mapping[str, Any]) -> NewTrial | None:
        """Return trial `number` with all `parameters` given, or None if it is impossible or breaks a constraint."""
        found = self._fit(number, parameters)
        return found if isinstance(found, NewTrial) else None

    def observe(self, number: int, seen: Mapping[str, Any]) -> None:
        """Show the sampler an observation of another study's trial (warm_start.py) under a negative number.

        It is no trial of this study: its configuration may be suggested again.
        """
        parameters = seen["parameters"]
        config = self._trial(number, parameters, self.study.settings_of(self.dataset, parameters))
        epoch = max(1, round(seen["share"] * config.epochs))
        trial = TrialProgress(
            config=config,
            size={},
            sampler_state={"trial": self._traits.observed},
            state=TrialState(seen["state"]),
            epoch=epoch,
        )
        self.curves.observe(trial, seen["metrics"])
        self.history.put(self.converter.to_frozen_trial(trial, self.curves))

    def _proposals(
        self, number: int, fixed: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield (Optuna's values, sampler state) pairs with the values `fixed`, those of the study's sampler first."""
        del self._further[0 if fixed else self._further_at_once() :]
        while self._further:
            yield self._further.pop(0), {"trial": {}, "study": {}}
        rejected: dict[str, Any] = {}
        product = self.dimensions.product()
        for attempt in range(SAMPLER_ATTEMPTS + RANDOM_ATTEMPTS):
            sampler = self._sampler(number, attempt, rejected, fixed)
            sequence = isinstance(sampler, SequenceSampler)
            if attempt >= SAMPLER_ATTEMPTS and not sequence:
                if product is not None and product <= RANDOM_ATTEMPTS:
                    break
                sampler = RandomSampler(seed=self._seed(number, attempt))
            try:
                inner, trial_attrs, study_attrs = self._ask(sampler, number, fixed)
            except SequenceEndedError:
                return
            rejected = trial_attrs
            if most := 0 if fixed else self._further_at_once():
                self._further = list(getattr(sampler, "further", ()))[:most]
            if sequence and fixed:  # its place in the sequence is still to be visited
                yield inner, {"trial": {}, "study": {}}
            else:
                yield inner, {"trial": trial_attrs, "study": study_attrs}
        if product is not None and product <= ENUMERATION_LIMIT:
            order = shuffled(product, study_seed=self.study.seed, dataset=self.dataset, purpose=f"rest {number}")
            rest = (inner for _, inner in walk(self.dimensions, order, 0))
            yield from ((inner, {}) for inner in rest if fixed.items() <= inner.items())

    def _ask(
        self, sampler: BaseSampler, number: int, fixed: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        self.history.open(number)
        self._optuna.sampler = sampler
        inner: dict[str, Any] = {}
        try:
            trial = self._optuna.ask()
            values: dict[str, Any] = {}
            for name, spec in self.dimensions.space.ranges.items():
                if self.dimensions.space.is_active(name, values):
                    own = self.dimensions.distributions[name]
                    inner[name] = fixed[name] if name in fixed else _suggested(trial, name, own)
                    values[name] = decode(spec, inner[name])
        finally:
            trial_attrs, study_attrs = self.history.drop()
        return inner, trial_attrs, study_attrs

    def _sampler(self, number: int, attempt: int, rejected: Mapping[str, Any], fixed: Mapping[str, Any]) -> BaseSampler:
        config, name = self.study.sampler, self.study.sampler.name
        request = SamplerRequest(
            name=name,
            dimensions=self.dimensions,
            study_seed=self.study.seed,
            dataset=self.dataset,
            seed=self._seed(number, attempt),
            objectives=len(self.study.objectives),
            startup_trials=self._startup_trials(),
            options=config.options,
            rejected=rejected,
            design=self.left,
            good=None if self.history.bounded is None else self.history.bounded.good,
            further=0 if fixed else self._further_at_once(),
            known=self._costs.before(
                accepts=lambda inner: isinstance(self._judge(number, inner), NewTrial), fixed=fixed, curves=self.curves
            ),
        )
        build = SAMPLERS.load(name)
        try:
            sampler = build(request)
        except TypeError as error:
            raise RequestError(f"sampler {name!r} must be built from one SamplerRequest: {error}") from error
        if not isinstance(sampler, BaseSampler):
            raise RequestError(f"sampler {name!r} must return an Optuna sampler, got {type(sampler).__name__}")
        return sampler

    def _startup_trials(self) -> int:
        """Return the trials after which the sampler starts: 1 once there are more of them than it can be shown."""
        bounded = self.history.bounded
        asked = self.study.sampler.startup_trials or self._traits.startup_trials
        if bounded is None or asked <= bounded.most // 2:
            return asked
        return 1 if bounded.finished + bounded.running >= asked else asked

    def _further_at_once(self) -> int:
        """Return how many suggestions a sampler may make beside one: none up to 127 unfinished trials."""
        bounded = self.history.bounded
        if bounded is None or self.study.deterministic is not None:
            return 0
        return max(int(bounded.running) // TOGETHER - 1, 0)

    def _seed(self, number: int, attempt: int) -> int:
        return int(stream(self.study.seed, self.dataset, number, "sampler", attempt).integers(2**32))

    def _judge(
        self, number: int, inner: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})
    ) -> NewTrial | str | None:
        """Return what `_fit` does for Optuna's values; the settings `given` are as the user gave them."""
        text = json.dumps(inner, sort_keys=True)
        if text in self._refused:
            return self._refused[text]
        found = self._fit(number, self.dimensions.decode(inner) | dict(given), once=True)
        if isinstance(found, str):
            self._refused[text] = found
        return found

    def _fit(self, number: int, parameters: Mapping[str, Any], *, once: bool = False) -> NewTrial | str | None:
        """Return trial `number`, or in words why it cannot be trained; with `once`, None if it was suggested before."""
        try:
            settings = self._twins.settings_of(parameters)
        except ValidationError as error:
            return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        if once and self._configuration(parameters.get(VARIANT), settings) in self._seen:
            return None
        [size] = self.measure([settings], self.facts())
        if isinstance(size, NoSize):
            if self.study.compare is not None:  # no row of a comparison is left out
                raise RequestError(f"trainable {self.study.trainable!r}: {size.fault}")
            return size.fault
        if (broken := broken_bound(self.study, size)) is not None:
            return f"of the constraint {constraint_text(broken)}"
        return NewTrial(config=self._trial(number, parameters, settings), size=size, facts=self.facts())

    def _trial(self, number: int, parameters: Mapping[str, Any], settings: TrainableSettings) -> TrialConfig:
        variant = parameters.get(VARIANT)
        name = None if variant is None else str(variant)
        return TrialConfig(
            key=TrialKey(study=self.study.name, dataset=self.dataset, number=number),
            stage="search",
            settings=settings,
            task=self.study.task(self.dataset),
            trainable=self.study.trainable,
            seeds=self.study.seeds_of(name),
            study_seed=self.study.seed,
            protocol=self.study.protocol,
            parameters=parameters,
            variant=name,
            best=self.study.best_report,
        )

    def _configuration(self, variant: Any, settings: TrainableSettings) -> str:
        """Return a key that is equal for equal training; a comparison distinguishes every row of its design."""
        if self.study.compare is None:
            settings = settings.effective(self.facts())
        return f"{variant}\n{settings.model_dump_json()}"


def _suggested(trial: optuna.Trial, name: str, own: BaseDistribution) -> int | float:
    if isinstance(own, CategoricalDistribution):
        return int(trial.suggest_categorical(name, own.choices))  # type: ignore[arg-type]
    if isinstance(own, IntDistribution):
        return trial.suggest_int(name, own.low, own.high, step=own.step, log=own.log)
    assert isinstance(own, FloatDistribution)
    return trial.suggest_float(name, own.low, own.high, log=own.log)
