"""Predicted against actual hours: `ablate plan` of ten shipped studies, then the studies, scaled to a minute each.

    ABLATE_DATA=... python benchmarks/plan.py         # ten studies, about ten minutes on one core
    ABLATE_DATA=... python benchmarks/plan.py --only lists characters

Each study is planned and at once run in this process, one trial after another on one thread, without tracker, early
stopping and confirmation, as a plan assumes. "Actual" is the CPU time from the first trial to the last: training,
validation, checkpoints, ledger.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from record import RESULTS, ROOT, write_csv

from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialConfig
from ablate.driver.data_checks import check_data
from ablate.driver.plan import make_plan
from ablate.execution import LocalExecutor
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.study.file import read_study
from ablate.study.sections import SchedulerConfig
from ablate.tuning import Search


@dataclass(frozen=True, kw_only=True)
class Case:
    """A shipped study, the share that is run (`--scale`), and the data sets of it."""

    file: str
    scale: float
    only: tuple[str, ...] | None = None


CASES = {
    "digits": Case(file="digits", scale=0.3),
    "components": Case(file="components", scale=0.2),
    "claims": Case(file="claims", scale=0.4, only=("digits", "mnist")),
    "fashion": Case(file="fashion_mnist", scale=0.2),
    "characters": Case(file="characters", scale=0.1),
    "lists": Case(file="lists", scale=0.1, only=("reverse", "sort")),
    "numbers": Case(file="papers/kv_attention_numbers", scale=0.1, only=("numbers-16",)),
    "paper B, table 3": Case(file="papers/kv_attention_table3", scale=0.03, only=("mnist-7", "fashion_mnist-7")),
    "translation": Case(file="papers/kv_attention_translation", scale=0.02, only=("de_en-64",)),
    "paper A, table 2": Case(file="papers/minimal_transformer_table2", scale=0.01),
}


def main() -> None:
    """Plan and run the studies, print both times, and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    asked = parser.parse_args()
    rows = []
    for name in asked.only:
        study = study_of(CASES[name])
        begun = time.perf_counter()
        hours = make_plan(study, data_dir=None, measure_time=True).hours()
        assert hours is not None
        planning = time.perf_counter() - begun
        predicted, actual = hours * 3600, seconds_of(study)
        print(f"{name:<18} predicted {predicted:6.1f} s, actual {actual:6.1f} s, ratio {predicted / actual:.2f}")
        rows.append(
            {
                "study": name,
                "scale": CASES[name].scale,
                "predicted_s": round(predicted, 2),
                "actual_s": round(actual, 2),
                "ratio": round(predicted / actual, 3),
                "planning_s": round(planning, 2),
            }
        )
    errors = [abs(float(row["ratio"]) - 1) for row in rows]
    print(f"median error {statistics.median(errors):.0%} over {len(rows)} studies")
    if len(rows) == len(CASES):
        write_csv(RESULTS / "plan.csv", rows)


def study_of(case: Case) -> Study:
    """Return the study at its scale, without what a plan does not count."""
    file = ROOT / "search_spaces" / f"{case.file}.yaml"
    study, _ = read_study(file, scale=case.scale, only=case.only)
    if study.compare is not None:
        return study
    return study.model_copy(update={"scheduler": SchedulerConfig(name="none"), "confirm": None})


def seconds_of(study: Study) -> float:
    """Run a study in this process and return the CPU seconds from its first trial to its last."""
    with tempfile.TemporaryDirectory() as folder, searching(study, Path(folder)) as search:
        begun = time.process_time()
        LocalExecutor(home=Path(folder)).run(search, on_event=lambda: None)
        return time.process_time() - begun


@contextmanager
def searching(study: Study, folder: Path) -> Iterator[Search]:
    """Yield a search on a new ledger."""
    trainable, facts = load_trainable(study.trainable), check_data(study, None)

    def group_key(config: TrialConfig) -> str | None:
        return trainable.group_key(config, facts[config.key.dataset])

    with Ledger.open(f"sqlite:///{folder}/ledger.sqlite") as ledger:
        held = {"file_text": "", "fingerprint": study.fingerprint(), "seed": study.seed, "holder": "benchmark"}
        with ledger.acquire(study.name, takeover=False, **held) as writer:
            known, get = trainable.measure, facts.__getitem__
            yield Search(study, writer, ledger, measure=known, facts_of=get, group_key=group_key)


if __name__ == "__main__":
    main()
