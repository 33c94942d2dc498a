"""CPU time of one suggestion by the number of trials that a search has had.

    python benchmarks/suggestion_cost.py     # a minute; results/suggestion_cost.csv

The space is that of search_spaces/digits.yaml (252 networks), and once with widths from 8 to 512, so that hardly a
network occurs twice. A fifth of the trials were complete, the others stopped. Each number is the mean of 10
suggestions.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import optuna
import yaml
from record import RESULTS, ROOT, write_csv

from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialState
from ablate.study import Study
from ablate.tuning.sampling.candidates import Candidates
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.state.trial_progress import TrialProgress

TRIALS, SUGGESTIONS = (100, 500, 3_000, 10_000), 10
SPACES: dict[str, dict[str, Any]] = {
    "digits": {},
    "wide": {"width": {"int": [8, 512], "step": 4}, "mlp": {"int": [1, 512]}},
}
PACKAGES = ("numpy", "scipy", "optuna")


def suggester_after(space: str, sampler: str, trials: int) -> Suggester:
    """Return a suggester that was told of trials with made-up accuracies."""
    fields = yaml.safe_load((ROOT / "search_spaces" / "digits.yaml").read_text())
    study = Study.model_validate(fields | {"sampler": {"name": sampler}, "model": fields["model"] | SPACES[space]})
    trainable = load_trainable(study.trainable)
    facts = trainable.find_facts(study.task("digits"), None)
    found = Suggester(study=study, dataset="digits", measure=trainable.measure, facts=lambda: facts)
    candidates, rng = Candidates(dimensions=found.dimensions), np.random.default_rng(0)
    for number, row in enumerate(candidates.placed(candidates.draw(rng, trials), {})):
        new = found.build(number, found.dimensions.decode(candidates.values(row)))
        assert new is not None
        assert new.size
        accuracy = 1 - 1 / np.log(new.size["params"]) + 0.02 * rng.standard_normal()
        state, epoch = (TrialState.COMPLETE, 27) if rng.random() < 0.2 else (TrialState.PRUNED, 3)
        means = {"val_accuracy": float(accuracy)}
        found.put(
            TrialProgress(config=new.config, size=new.size, sampler_state={}, state=state, epoch=epoch, means=means)
        )
    return found


def main() -> None:
    """Measure, print and write the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows: list[dict[str, object]] = []
    for space in SPACES:
        for sampler in ("front", "tpe"):
            for trials in TRIALS:
                found, begun = suggester_after(space, sampler, trials), time.process_time()
                for number in range(trials, trials + SUGGESTIONS):
                    found.suggest(number)
                spent = 1000 * (time.process_time() - begun) / SUGGESTIONS
                rows.append({"space": space, "sampler": sampler, "trials": trials, "cpu_ms": f"{spent:.1f}"})
                print(rows[-1], flush=True)
    write_csv(RESULTS / "suggestion_cost.csv", rows, packages=PACKAGES)


if __name__ == "__main__":
    main()
