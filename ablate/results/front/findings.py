"""The findings of one data set, computed once for the page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import count_states, no_front_text, stopped_text
from ablate.results.front.assessment import Assessment, assessments
from ablate.results.front.confirmation_text import withheld_text
from ablate.results.front.fitted import Fit, search_fits
from ablate.results.front.front import column_of, front_stage
from ablate.results.front.sentences import Answer, answer
from ablate.results.front.tables import front_table
from ablate.results.front.yours import Yours, yours
from ablate.results.trials.frozen import Confirmations, confirmations
from ablate.results.trials.results import Results, once

STATE_WORDS = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "unfinished",
    "WAITING": "waiting",
}


@dataclass(frozen=True, eq=False)
class Findings:
    """The findings of one data set, each computed once.

    While a confirmation or an extended search is unfinished there are no picks, assessment and fit, and `answer` says
    why.
    """

    results: Results
    dataset: str

    @cached_property
    def listed(self) -> pl.DataFrame:
        """The trials as in the ledger."""
        return self.results.on(self.dataset).trials

    def named(self, word: str) -> str:
        """Return ` on digits` for `on`, or an empty text where a study has one data set."""
        return f" {word} {self.dataset}" if len(self.results.study.labels) > 1 else ""

    @cached_property
    def pooled(self) -> Results:
        """Trials and reports, in which those of one network's seeds are pooled."""
        return self.results.pooled.on(self.dataset)

    @cached_property
    def front(self) -> pl.DataFrame:
        """The part of `front_table`."""
        return front_table(self.results).filter(pl.col("dataset") == self.dataset)

    @property
    def yours(self) -> Yours | None:
        """How the user's settings stand, if they were tried and there may be an answer."""
        return None if self.withheld else yours(self.results).get(self.dataset)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the front, and below them that of the user's settings if they are not on it."""
        mine = None if self.yours is None else self.yours.row
        front = self.front.rows(named=True)
        return front if mine is None or any(row["yours"] for row in front) else [*front, *mine.rows(named=True)]

    @property
    def no_front(self) -> str:
        """Why the front is empty, if it is."""
        rows, constraints = self.pooled.trials.filter(stage=self.stage), self.results.study.constraints
        states = rows["state"].to_list()
        stopped = stopped_text(constraints, states, column_of(rows, self.stage))
        return no_front_text(states.count("COMPLETE"), constraints) + f"; {stopped}" * bool(stopped)

    @cached_property
    def stage(self) -> str:
        """The stage that the numbers are of."""
        return front_stage(self.pooled.trials, self.dataset)

    @cached_property
    def confirmations(self) -> Confirmations:
        """The states of the frozen configurations."""
        return confirmations(self.results, self.dataset)

    @property
    def assessed(self) -> Assessment | None:
        """The comparison of the confirmed networks."""
        return assessments(self.results).get(self.dataset)

    @property
    def fit(self) -> Fit:
        """The fit of error against size."""
        return search_fits(self.results)[self.dataset]

    @property
    def withheld(self) -> str:
        """Why there is no answer yet; empty if there may be one."""
        return withheld_text(self.results.study, self.confirmations)

    @cached_property
    def answer(self) -> Answer | None:
        """The answer, if there may be one."""
        if not self.front.height or self.withheld:
            return None
        return answer(self.results.study, self.front, self.assessed, is_last=self.yours is None)

    @property
    def answer_text(self) -> str:
        """The answer in words, with one objective that to the user's settings first, or why there is none."""
        if self.answer is None:
            return f"There is no answer yet: {self.no_front}." if not self.front.height else self.withheld
        said = [self.answer.text] if self.yours is None else [self.yours.sentence, self.answer.text]
        return " ".join(said if len(self.results.study.objectives) == 1 else reversed(said))

    @property
    def tested(self) -> bool:
        """Whether the numbers are of confirmation runs on the test split."""
        return self.stage == "confirm"

    @property
    def provisional(self) -> bool:
        """Whether a confirmation, or an extended search, is unfinished."""
        return self.confirmations.is_open

    @property
    def confirmed(self) -> bool:
        """Whether the numbers are of a test split that influenced no choice, and every confirmation has ended."""
        return self.tested and not self.provisional and self.results.study.protocol == "held_out"


@once
def findings(results: Results) -> dict[str, Findings]:
    """Return the findings of every data set of a search."""
    return {dataset: Findings(results, dataset) for dataset in results.study.labels}


def by_state(trials: pl.DataFrame) -> list[str]:
    """Return how many trials are in each state that occurs: `15 complete`, `9 stopped early`."""
    return [f"{count:,} {STATE_WORDS[state]}" for state, count in count_states(trials["state"]).items() if count]


def counts_text(trials: pl.DataFrame) -> str:
    """Return `24 search trials (15 complete, 9 stopped early), 5 confirmation trials (5 complete)`."""
    parts = []
    for stage, word in (("search", "search"), ("confirm", "confirmation")):
        own = trials.filter(stage=stage)
        parts += [f"{counted(own.height, f'{word} trial')} ({', '.join(by_state(own))})"] * bool(own.height)
    return ", ".join(parts) or "no trials"
