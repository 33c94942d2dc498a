"""A campaign: which runs its candidates need, and what becomes of them, recomputed from the ledger alone.

A candidate is judged after each of its runs, in its own order of seeds. Its submission fixes what its decision reads:
the reference, how many runs of it were known, and the spread of the arms that had ended. So neither the order in which
runs end nor a killed driver changes a decision.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.base.errors import LedgerError, StudyFailedError
from ablate.base.judging import Pool, Runs, doubt_of_ratio, is_far_behind, judge
from ablate.base.randomness import stream
from ablate.core.code_version import Code, CodeVersion
from ablate.core.objectives import is_of_training, quality_objective, signed
from ablate.core.trial import TrialState, place_of
from ablate.ledger.requests import ANSWERED, CLOSE, JUDGED, OPENED, Change
from ablate.study.design import merge_settings
from ablate.tuning.stages.arms import Arm, event_of
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study


EARLY = ((1, 2.0), (2, 1.5))  # thirds of a first run, and the standard deviations behind that end it there
CURVES = 4  # least number of runs that it is compared with
REFUTED = 0.95  # p-value of being cheaper above which a candidate must be better
WINDOW = 30  # candidates that share runs of the reference: then it gets others, in case runs drift in time
EQUAL = 3  # runs with the numbers of the champion end a candidate; one may be equal by chance, such as an accuracy


class Campaign:
    """The arms of one data set; `mark` and `enter` apply what the ledger holds, everything else follows from it."""

    def __init__(self, study: Study, dataset: str) -> None:
        assert study.campaign is not None
        self.study, self.dataset, self.asked = study, dataset, study.campaign
        self.quality, self.rule = quality_objective(study.objectives), study.campaign.rule
        self.pool = Pool()
        self.k, self.reign = 0, 1
        self.closed: Mapping[str, Any] | None = None
        self.opened: Mapping[str, Any] = {}  # the event of the opening: the folder of the code, or why there is none
        self._runs: dict[int, dict[int, TrialProgress]] = defaultdict(dict)
        self.arms = [self._arm(0, {}, most=self.rule.most)]
        self.arms[0].state = "keep"
        self.reference = self.champion = self.arms[0]

    @property
    def open(self) -> list[Arm]:
        """The candidates that are not decided, in the order of submission."""
        return [arm for arm in self.arms if arm.state == "open"]

    @property
    def is_open(self) -> bool:
        """Whether a run of the reference's first ones, or of a candidate, is missing."""
        return bool(self.open) or len(self.arms[0].ended()) < self.rule.reference_runs(1)

    @property
    def champion_reported(self) -> bool:
        """Whether a run of the first champion has reported."""
        return any(run.decisions for run in self.arms[0].runs.values())

    def enter(self, run: TrialProgress) -> None:
        """Add a trial to its arm; those of the closing are in none."""
        if (number := place_of(run.sampler_state)) is not None:
            self._runs[number][run.config.seeds[0]] = run
            run.curve = {}

    def mark(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Apply one event; raise LedgerError for one of no candidate."""
        if kind == OPENED:
            self.opened, code = payload, payload.get("code")
            self.arms[0].code = None if code is None else Code.model_validate(code)
            self.arms[0].identity = self._identity({}, self.arms[0].code)
        elif kind == JUDGED:
            self._decide(self.find(payload["candidate"]), payload)
        elif kind == ANSWERED and payload.get("candidate") == len(self.arms):
            self._submit(payload)
        elif kind == ANSWERED and "candidate" in payload:
            arm = self.find(payload["candidate"])
            arm.most = max(arm.most, payload["runs"])
            arm.state = "open" if arm.state == "undecided" and arm.looked < arm.most else arm.state
        elif kind == ANSWERED and payload.get("command") == CLOSE and "refused" not in payload:
            self.closed = payload
            for arm in self.open:  # the budget was spent before they were decided
                arm.state = "undecided"

    def find(self, number: int) -> Arm:
        """Return an arm; raise LedgerError if there is none of that number."""
        if number >= len(self.arms):
            raise LedgerError(f"study {self.study.name!r}: its events are damaged: there is no candidate {number}")
        return self.arms[number]

    def alike(self, settings: Mapping[str, Any], code: Code | None) -> Arm | None:
        """Return the arm of the same settings and program that was judged in this reign, or is the champion."""
        identity = self._identity(settings, code)
        here = (arm for arm in self.arms if arm.reign == self.reign or arm is self.champion)
        return next((arm for arm in here if arm.identity == identity), None)

    def candidate(self, change: Change) -> dict[str, Any]:
        """Return the event that submits the champion with `change`; of an arm that was judged, only its number."""
        settings = merge_settings(self.champion.settings, change.settings)
        most = self.rule.most if change.runs is None else min(change.runs, self.rule.looks[-1])
        if (arm := self.alike(settings, change.code or self.champion.code)) is not None:
            return {"candidate": arm.number, "runs": most}
        known = len(self.reference.judged_by())
        said = change.model_dump(mode="json", include={"code", "note", "by"}, exclude_none=True)
        return {"candidate": len(self.arms), "settings": settings, "change": change.settings, "known": known,
                "runs": most, "effort": self.asked.pace, **said}  # fmt: skip

    def trainable(self, arm: Arm) -> str:
        """Return the trainable of an arm's runs: the study's, in the version of the arm if the campaign has code."""
        if arm.code is None:
            return self.study.trainable
        first, evaluate = self.arms[0].code, self.asked.evaluate
        measures = evaluate is not None and first is not None and arm.code != first
        return CodeVersion(
            base=self.study.trainable,
            tree=arm.code.tree,
            inside=self.opened["inside"],
            evaluate=evaluate,
            reference=first.tree if measures and first is not None else None,
        ).name

    def wanted(self) -> list[tuple[Arm, int]]:
        """Return the runs that can begin now, as arm and place: the reference's, then of arms with the fewest first.

        A candidate has runs in waves: up to the next power of two above the runs after which it was judged.
        """
        if self.closed is not None:
            return []
        own = list[tuple[Arm, int]]()
        needed = {self.reference.skipped: self.rule.reference_runs(1)}  # a candidate may have an earlier window
        for arm in self.open:
            most = min(1 << arm.looked.bit_length(), arm.most)
            own += [(arm, place) for place in range(len(arm.runs), most)]
            assert arm.reference is not None
            runs, first = self.rule.reference_runs(min(len(arm.runs) + 1, most)), arm.reference.skipped
            needed[first] = max(needed.get(first, 0), runs)
        places = sorted({place for first, runs in needed.items() for place in range(first, first + runs)})
        missing = [(self.reference, place) for place in places if self.reference.seed(place) not in self.reference.runs]
        return missing + sorted(own, key=lambda each: (each[1], each[0].number))

    def is_over(self, run: TrialProgress) -> bool:
        """Return whether a run's arm needs it no longer."""
        number = place_of(run.sampler_state)
        return number is not None and self.find(number).state in ("discard", "undecided", "superseded")

    def is_behind(self, run: TrialProgress, epoch: int, means: Mapping[str, float]) -> bool:
        """Return whether a candidate's first run is far behind the champion's at a third or two thirds of its training.

        It is looked at in the first report from there on, beside the runs of the reference that were known at the
        submission (`is_far_behind`). A loss that the rule allows is added first.
        """
        number = place_of(run.sampler_state)
        arm = None if number is None else self.find(number)
        if arm is None or arm.reference is None or arm.runs.get(arm.seed(0)) is not run or arm.known < CURVES:
            return False
        before, most = max((e for e in run.curve or () if e < epoch), default=0), run.config.epochs
        limits = [limit for part, limit in EARLY if 3 * before < part * most <= 3 * epoch]
        if not self.asked.early or not limits or epoch >= most:
            return False
        known = [each.curve or {} for each in arm.reference.judged_by()[: arm.known]]
        if not all(epoch in each for each in known):
            return False
        values = [curve[epoch].get(self.quality.metric, math.nan) for curve in known]
        allowed = max(self._shift(self._doubt(arm, 0, 0)), 0.0)
        own = -signed(self.quality, means.get(self.quality.metric, math.nan)) + allowed
        return bool(is_far_behind(own, -np.array([signed(self.quality, each) for each in values]), limits[-1]))

    def decision(self) -> dict[str, Any] | None:
        """Return the event of the next decision, or None while all candidates need further runs.

        Raises StudyFailedError if a run of the reference failed.
        """
        base = (run for run in self.reference.runs.values() if run.state.finished)
        if (failed := next((run for run in base if self.value(run) is None), None)) is not None:
            raise StudyFailedError(
                f"campaign {self.study.name!r}: trial {failed.key}, a run of the champion, failed. Type: ablate retry"
                f" {self.study.name} {failed.number}, or begin a campaign with `campaign.diverged`"
            )
        for arm in self.arms:
            closed = arm.state == "undecided" and not arm.judged  # by the closing: its last look is shown
            found = self._look(arm) if arm.state == "open" or closed else None
            if found is not None and not closed:
                return found
        return None

    def value(self, run: TrialProgress) -> float | None:
        """Return a run's quality, turned so that more is better; None for one that failed."""
        value = run.metric(self.quality.metric)
        if run.state is not TrialState.COMPLETE:
            reported = any(self.quality.metric in each for each in run.replicates)
            gone = run.diverged or (reported and not math.isfinite(value))
            found = self.asked.diverged.get(self.quality.metric) if gone else None
            return None if found is None else -signed(self.quality, found)
        return -signed(self.quality, value)

    def _arm(self, number: int, settings: Mapping[str, Any], code: Code | None = None, **more: Any) -> Arm:
        identity, runs = self._identity(settings, code), self._runs[number]
        return Arm(number=number, settings=settings, code=code, identity=identity, runs=runs, **more)

    def _identity(self, settings: Mapping[str, Any], code: Code | None) -> str:
        program = "" if code is None else code.program
        return program + self.study.settings_of(self.dataset, settings).effective(None).model_dump_json()

    def _submit(self, payload: Mapping[str, Any]) -> None:
        self.k += 1
        code = Code.model_validate(payload["code"]) if "code" in payload else self.champion.code
        arm = self._arm(
            payload["candidate"],
            payload["settings"],
            code,
            submitted=payload,
            most=payload["runs"],
            effort=payload["effort"],
            k=self.k,
            reign=self.reign,
            known=payload["known"],
            reference=self.reference,
            champion=self.champion,
            pool=copy.copy(self.pool),
        )
        keys = stream(self.study.seed, self.dataset, self.reign, "campaign", arm.identity)
        arm.order = keys.permutation(arm.known).tolist()
        self.arms.append(arm)
        if self.asked.mode == "claims" and self.k % WINDOW == 0:
            self.reference = replace(self.reference, skipped=self.reference.skipped + arm.known)

    def _look(self, arm: Arm) -> dict[str, Any] | None:
        """Judge an arm after each further run; return the event of its decision, or None if there is none yet."""
        assert arm.reference is not None
        own, base = arm.ended(), arm.reference.judged_by()
        while arm.looked < min(len(own), arm.most):
            n = arm.looked + 1
            m = max(arm.known, self.rule.reference_runs(n))
            if self.value(own[n - 1]) is None:
                last = own[n - 1]
                lost = [each[self.quality.metric] for each in last.replicates if self.quality.metric in each]
                gone = last.diverged or not all(map(math.isfinite, lost))
                reason = "withdrawn" if last.state is TrialState.PRUNED else "diverged" if gone else "crashed"
                if self.is_behind(own[0], own[0].epoch, own[0].means):
                    reason = "behind"
                return event_of(arm, {"state": "discard", "runs": n, "reason": reason, "trial": own[n - 1].number})
            if len(base) < m or (arm.champion is not None and len(arm.champion.ended()) < arm.champion.looked):
                return None
            shared, doubt = self._shared(arm, n), self._doubt(arm, n, m)
            shift = self._shift(doubt)
            same = shift <= 0 and all(a.replicates == b.replicates for a, b in zip(own[:n], shared, strict=True))
            values, beside, known = (self._values(each) for each in (own[:n], shared, base[:m]))
            steady = np.ptp(values) == np.ptp(known) == 0 and {*values, *known} - {0.0, 1.0}  # a share may be 0 or 1
            if same or (n > 1 and (steady or (_alike(own[:n]) and _alike(base[:m])))):
                if n == min(EQUAL, arm.most):
                    found = {"reason": "same-numbers" if same else "equal-seeds", "reference_runs": m}
                    return event_of(arm, {"state": "discard", "runs": n, **found})
                arm.looked = n
                continue
            rule = replace(self.rule.with_effort(arm.effort), most=arm.most)
            find = partial(judge, values, beside, known, arm.pool, arm.k, rule=rule)
            arm.latest, arm.looked = find(shift=shift), n
            if arm.latest.state == "keep" and self._shift(doubt, shown=arm.latest.allowed) < shift:
                shift = self._shift(1.0)
                arm.latest = find(shift=shift)
                if arm.latest.state == "discard":  # it is better, and its cost may show with further runs
                    arm.latest = replace(arm.latest, state="undecided" if n == arm.most else "open")
            if arm.latest.state != "open":
                claim = "step" if self.asked.mode == "explore" else "not-worse" if shift > 0 else "better"
                hopeless = "hopeless" if arm.latest.state == "discard" else None
                timed = {"cost_p": doubt} if "wall_seconds" in self.asked.cheaper else {}
                return event_of(arm, {"claim": claim, "reason": hopeless, **asdict(arm.latest), **timed})
        return None

    def _shift(self, doubt: float, shown: float = REFUTED) -> float:
        """Return the margin for a candidate that need not be better, otherwise the least gain, as a negative number.

        A candidate need not be better if it is cheaper, up to a `doubt` (p-value) of `shown`.
        """
        may = self.asked.gate == "not-worse" or doubt <= shown
        return self.asked.margin[self.quality.metric] if may else -self.asked.gain

    def _doubt(self, arm: Arm, n: int, m: int) -> float:
        """Return the p-value of a candidate that is not cheaper: 0 or 1 for sizes, by a t test for `wall_seconds`.

        The test reads n runs of the candidate, and those of its champion that were known when it was submitted, or the
        first m runs of the first champion. A run that diverged has no time that counts, so it shows no saving.
        """
        champion, doubts = arm.champion, [0.0 if self.asked.cheaper else 1.0]
        assert champion is not None
        for name, share in self.asked.cheaper.items():
            own, others = ([run.metric(name) for run in each.runs.values()] for each in (arm, champion))
            if name != "wall_seconds":  # no comparison with NaN holds: a size that is unknown is none
                doubts.append(0.0 if own and others and own[0] <= share * others[0] else 1.0)
            elif n > 0:
                runs = arm.ended()[:n], champion.ended()[: champion.looked or m]
                mine, theirs = (_seconds(each) for each in runs)
                doubts.append(doubt_of_ratio(mine, theirs, share) if len(theirs) > 1 else 1.0)
        return max(doubts) if all(map(math.isfinite, doubts)) else 1.0

    def _shared(self, arm: Arm, n: int) -> list[TrialProgress]:
        assert arm.reference is not None
        return [arm.reference.runs[arm.seed(place)] for place in range(n)]

    def _values(self, runs: Sequence[TrialProgress]) -> Runs:
        return np.array([self.value(run) for run in runs], dtype=np.float64)

    def _decide(self, arm: Arm, payload: Mapping[str, Any]) -> None:
        """Apply a decision: the champion that it makes, and the spread that it adds to what is known."""
        n, first = payload["runs"], not arm.judged
        arm.state, arm.judged, arm.looked = payload["state"], payload, n
        if first and "gain" in payload and (arm.state != "keep" or payload["claim"] == "not-worse"):
            self.pool.add(self._values(arm.ended()[:n]), self._values(self._shared(arm, n)))
        if arm.state != "keep":
            return
        for other in self.open:
            other.state = "superseded"
        self.champion = arm
        self.reign += 1
        if payload["claim"] == "not-worse":
            return
        assert arm.reference is not None
        base = arm.reference.judged_by()[: payload["reference_runs"]]
        self.pool.add(self._values(base), None)
        self.reference, arm.skipped = arm, n if self.asked.reference == "fresh" else 0
        if self.asked.error == "each":
            self.k = 0


def _alike(runs: Sequence[TrialProgress]) -> bool:
    """Return whether all runs have equal numbers: the training does not use its seed, so they are one run."""
    told = [{n: v for each in run.replicates for n, v in each.items() if is_of_training(n)} for run in runs]
    return all(each == told[0] for each in told)


def _seconds(runs: Sequence[TrialProgress]) -> Runs:
    times = [run.metric("wall_seconds") if run.state is TrialState.COMPLETE else math.nan for run in runs]
    return np.array(times, dtype=np.float64)
