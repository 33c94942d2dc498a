"""What the builder of a user's own sampler declares holds in a study as for a built-in one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from ablate.base.errors import RegistryError, RequestError
from ablate.tuning import SamplerRequest, SamplerTraits
from ablate.tuning.recorded import recorded_searches
from ablate.tuning.warm_start import WARM_START, find_observations
from support.searches import ONE, TWO, opened, run_all, search_of, stored, study_of

ASKED: list[SamplerRequest] = []
SHOWN: list[list[FrozenTrial]] = []  # the finished trials at each suggestion


class Recording(RandomSampler):
    """Suggests at random, and writes down what it is shown."""

    def infer_relative_search_space(self, study: Any, trial: FrozenTrial) -> dict[str, Any]:
        SHOWN.append([each for each in study.get_trials(deepcopy=False) if each.state.is_finished()])
        return {}


def plain(request: SamplerRequest) -> Recording:
    ASKED.append(request)
    return Recording(seed=request.seed)


violating = SamplerTraits(learns=False, stopped_as="violating")(partial(plain))
pruned = SamplerTraits(startup_trials=3, stopped_as="pruned", observed={"x": 4})(partial(plain))
bounded = SamplerTraits(most_trials=1)(partial(plain))


def by(name: str, **changes: Any) -> Any:
    """Return a study of 12 trials with a sampler of this file, by import path."""
    sampler = {"name": f"{__name__}:{name}", **changes.pop("given", {})}
    return study_of(**({"sampler": sampler, "scheduler": {"name": "asha"}, "budget": {"trials": 12}} | changes))


@pytest.mark.parametrize(("objectives", "state"), [(ONE, "PRUNED"), (TWO, "COMPLETE")])
@pytest.mark.parametrize(("name", "told"), [("plain", None), ("violating", "COMPLETE"), ("pruned", "PRUNED")])
def test_stopped_trials_and_the_start(tmp_path: Path, name: str, told: Any, objectives: Any, state: str) -> None:
    with opened(by(name, objectives=objectives), tmp_path) as (search, _, _):
        run_all(search)
    ended = [trial.state.name for trial in stored(tmp_path)]
    early = [trial for trial in SHOWN[-1] if ended[trial.number] == "PRUNED"]
    assert len(SHOWN[-1]) == 11
    assert {trial.state.name for trial in early} == {told or state}
    assert {max(trial.constraints.values(), default=0) > 0 for trial in early} == {(told or state) == "COMPLETE"}
    assert ASKED[-1].startup_trials == (3 if name == "pruned" else 10)


@pytest.mark.parametrize("startup", [4, 10])
def test_a_history_is_bounded_as_declared(tmp_path: Path, startup: int) -> None:
    with opened(by("bounded", given={"startup_trials": startup} if startup < 10 else {}), tmp_path) as (search, _, _):
        run_all(search)
    assert len(SHOWN[-1]) == 1
    asked = [request.startup_trials for request in ASKED[-12:]]
    assert asked == [startup] * startup + [1] * (12 - startup), "it never sees that many trials"


def test_of_another_studys_trials_it_is_shown_what_it_declares(tmp_path: Path) -> None:
    source = study_of(sampler={"name": "random"}, budget={"trials": 3})
    with opened(source, tmp_path) as (search, _, ledger):
        run_all(search)
        before = recorded_searches(source, ledger.snapshot("s"))
    with pytest.raises(RequestError, match="violating learns from no result"):
        find_observations(by("violating"), before)
    for name, found in (("plain", None), ("pruned", 4)):
        (folder := tmp_path / name).mkdir()
        with opened(study := by(name), folder) as (_, writer, ledger):
            writer.note(WARM_START, None, find_observations(study, before))
            search_of(study, writer, ledger).next_trial()
        assert [trial.system_attrs.get("x") for trial in SHOWN[-1]] == [found] * 3


WRONG = {
    "stopped_as='failed'": "stopped_as: Input should be 'pruned' or 'violating'",
    "most_trials=0": "most_trials: Input should be greater than or equal to 1",
    "learn=False": "learn: Extra inputs are not permitted",
}


@pytest.mark.parametrize("trait", WRONG)
def test_a_wrong_declaration_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trait: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"wrong_{trait.partition('=')[0]}"
    (tmp_path / f"{name}.py").write_text(f"from ablate.tuning import SamplerTraits\nbuild = SamplerTraits({trait})(id)")
    with pytest.raises(RegistryError) as caught, opened(study_of(sampler={"name": f"{name}:build"}), tmp_path):
        pass
    assert str(caught.value) == f"sampler '{name}:build': cannot import '{name}': SamplerTraits, {WRONG[trait]}"
