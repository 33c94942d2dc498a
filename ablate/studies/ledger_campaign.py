"""What a campaign says of its candidates and of itself, read from the ledger (docs/campaign.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ablate.base.errors import RequestError, StudyFailedError
from ablate.base.plain_text import counted, finite
from ablate.core.code_version import SHORT
from ablate.core.objectives import is_maximized, is_share
from ablate.core.trial import TrialState
from ablate.ledger.requests import ANSWERED, CLOSE, JUDGE, JUDGED, REQUESTED
from ablate.results.rendering.numbers import spell_metric
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored, read_study
from ablate.tuning.recorded import RecordedSearch, is_spent, recorded_searches
from ablate.tuning.refusals import MORE
from ablate.tuning.stages.arms import Arm
from ablate.tuning.stages.candidate_runs import Campaign

EXIT_CODES = {"keep": 0, "refused": 2, "discard": 3}  # of `ablate judge`; every other state: 4
OPEN = 4
SHOWN = 7  # characters of a revision in words
NUMBERS = ("claim", "gain", "low", "high", "se", "df", "p", "cost_p", "allowed", "bound", "need", "correlation")
COSTS = ("params", "flops", "wall_seconds")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known of a candidate: its state, and of the gain an interval.

    `again`: it had been decided before it was submitted. Without an arm, no driver has taken it up yet.
    """

    ledger: LedgerCampaign
    arm: Arm | None
    again: bool = False
    refused: str = ""

    @property
    def state(self) -> str:
        """keep, discard, undecided, open, superseded or refused."""
        return "refused" if self.refused else "open" if self.arm is None else self.arm.state

    @property
    def found(self) -> Mapping[str, Any]:
        """The numbers of the decision, or of the last run so far."""
        if self.arm is None:
            return {}
        return self.arm.judged or ({} if self.arm.latest is None else vars(self.arm.latest))

    def __getattr__(self, name: str) -> Any:
        """Return a number of the last look: gain, low, high, p, need and others; None if it has none."""
        if name in NUMBERS:
            return self.found.get(name)
        raise AttributeError(name)

    @property
    def submitted(self) -> Mapping[str, Any]:
        """What was submitted: `change` from the champion, and perhaps `note` and `by`."""
        return {} if self.arm is None else self.arm.submitted

    @property
    def runs(self) -> int:
        """The runs on which this verdict rests."""
        return int(self.found.get("runs", 0))

    @property
    def exit_code(self) -> int:
        """The exit code of `ablate judge`."""
        return EXIT_CODES.get(self.state, OPEN)

    @property
    def reason(self) -> str | None:
        """Why a candidate is discarded or refused."""
        return self.refused or ("judged-before" if self.again and self.state != "open" else self.found.get("reason"))

    def as_values(self) -> dict[str, Any]:
        """Return plain values (docs/json.md)."""
        of, arm, found = self.ledger, self.arm, self.found
        return {
            "campaign": of.study.name,
            "candidate": None if arm is None else arm.number,
            "state": self.state,
            "text": self.line(output=False),
            "reason": self.reason,
            "metric": of.campaign.quality.metric,
            "better": "higher" if is_maximized(of.campaign.quality) else "lower",
            "scale": "plain",
            "k": None if arm is None else arm.k,
            "alpha_k": None if arm is None else of.campaign.rule.rate(arm.k),
            "runs": self.runs,
            "reference_runs": int(found.get("reference_runs", 0)),
            **{name: finite(found.get(name)) for name in NUMBERS},
            "cost": {} if arm is None else of.costs(arm),
            "code": None if arm is None or arm.code is None else arm.code.model_dump(exclude={"requirements"}),
            "diff": self.diff,
            "settings": {} if arm is None else dict(arm.settings),
            **{name: self.submitted.get(name) for name in ("change", "note", "by")},
            "champion": of.champion(),
            "reign": of.campaign.reign,
            "spent": of.spent(),
            "warnings": self.warnings,
        }

    @property
    def diff(self) -> str | None:
        """The command that shows how the candidate's code differs from its champion's; None if it does not."""
        arms = () if self.arm is None else (self.arm.champion, self.arm)
        trees = [arm.code.tree for arm in arms if arm is not None and arm.code is not None]
        return f"git diff {trees[0][:SHORT]} {trees[1][:SHORT]}" if len(set(trees)) == 2 else None

    @property
    def warnings(self) -> list[dict[str, str]]:
        """What the code of a candidate puts in doubt, as `code` and `text`."""
        code, asked = self.submitted.get("code"), self.ledger.campaign.asked
        found = []
        if self.state == "open" and self.ledger.is_stuck:
            found.append({"code": "budget", "text": f"the budget is spent: {MORE}"})
        if code is not None and code["requirements"]:
            names = ", ".join(code["requirements"])
            text = f"{names} changed, but the candidate is trained with the packages that are installed"
            found.append({"code": "dependencies", "text": text})
        if code is not None and not asked.guard and asked.evaluate is None:
            text = "the candidate measures itself: the study file has neither `guard` nor `evaluate`"
            found.append({"code": "self-measured", "text": text})
        return found

    def line(self, *, output: bool = True) -> str:
        """Return the verdict in one line, with the `output` of a run that failed: it may name test metrics."""
        of, runs = self.ledger, counted(self.runs, "run")
        after = f"after {runs}"
        if self.refused:
            return f"REFUSED: {self.refused}."
        if self.again and self.state not in ("open", "keep"):
            return f"{self.state.upper()}: judged before, {after} (no run spent)."
        if self.state == "keep":
            return self._keep()
        if self.state == "discard":
            return self._discard(after, output=output)
        if self.state == "undecided" and self.gain is None:
            return f"UNDECIDED {after}: the campaign was closed before. Treat it as not kept."
        if self.state == "undecided":
            more = f" If it stays so, about {self.need} more runs decide: add --runs {self.runs + self.need}."
            return f"UNDECIDED {after}: gain {self._gain()}.{more * bool(self.need)} Treat it as not kept."
        if self.state == "superseded":
            return f"SUPERSEDED {after}: the champion is {of.name(of.campaign.champion)} now. Judge it again."
        if of.is_stuck:
            return f"OPEN: {runs}, and the budget is spent: {MORE}."
        running = 0 if self.arm is None else sum(not run.state.finished for run in self.arm.runs.values())
        look = next((look for look in of.campaign.rule.looks if look > self.runs), self.runs)
        return f"OPEN: {runs}, {running} running; no keep before {look}."

    def _gain(self) -> str:
        of = self.ledger
        return f"{of.amount(self.gain)} ± {of.amount((self.high - self.low) / 2)}{of.unit}"

    def _keep(self) -> str:
        of, arm = self.ledger, self.arm
        assert arm is not None
        champion = f"Champion is now {of.name(arm)} (reign {arm.reign + 1})."
        if self.claim == "not-worse":
            margin = of.amount(of.campaign.asked.margin[of.campaign.quality.metric])
            costs = of.costs(arm)
            saved = {name: 1 - own / other for name, (own, other) in costs.items() if own < other}
            asked = [name for name in of.campaign.asked.cheaper if name in saved]
            saving = "".join(f"{saved[name]:.0%} fewer {spell_metric(name)}; " for name in asked)
            told = f"not worse by more than {margin}{of.unit} (gain {self._gain()}, {self.runs} runs)"
            return f"KEEP  {saving}{told}. {champion}"
        numbers = f"gain {self._gain()} ({self.runs} runs, p {self.p:.1e}, allowed {self.allowed:.1e})"
        biased = "Gains at a keep are up to .2 sd too high on average; the closing gives an unbiased one."
        return f"{'STEP' if self.claim == 'step' else 'KEEP'}  {numbers}. {champion} {biased}"

    def _discard(self, after: str, *, output: bool) -> str:
        of, reason = self.ledger, self.reason
        if reason == "hopeless":
            side = "behind" if self.gain < 0 else "ahead of"
            told = "a gain worth keeping is now unlikely. Not shown: that it is worse."
            return f"DISCARD {after}: {of.amount(abs(self.gain))}{of.unit} {side} the champion; {told}"
        if reason == "same-numbers":
            return f"DISCARD {after}: same numbers as the champion to the last bit."
        if reason == "equal-seeds":
            told = "all runs have equal numbers, and so have the champion's. Does the training use its seed?"
            return f"DISCARD {after}: {told} A command gets it by {{seed}} or ABLATE_SEED, a function by run.seed."
        if reason == "behind":
            run = of.search.trials[self.found["trial"]]
            at = f"at {of.study.unit} {run.epoch} of {run.config.epochs}"
            return f"DISCARD: its first run was stopped {at}, far behind the champion's. Not shown: that it is worse."
        error = of.error_of(self.found.get("trial")) if output else ""
        return f"DISCARD: {reason} in run {self.runs}{f': {error}' if error else ''}"


@dataclass(frozen=True, kw_only=True)
class LedgerCampaign:
    """A campaign as its ledger held it at one moment."""

    stored: Stored
    search: RecordedSearch
    is_due: bool = False  # whether a decision is to be committed

    @property
    def study(self) -> Any:
        """The study of the campaign's file."""
        return self.stored.study

    @property
    def campaign(self) -> Campaign:
        """The campaign's state."""
        assert self.search.campaign is not None
        return self.search.campaign

    @property
    def unit(self) -> str:
        """The unit of a gain."""
        return " points" if is_share(self.campaign.quality.metric) else f" {self.campaign.quality.metric}"

    @property
    def is_stuck(self) -> bool:
        """Whether a candidate is open, the budget is spent, and nothing runs or is due that could decide."""
        ended = all(run.state.finished for run in self.search.trials.values())
        return bool(self.campaign.open) and ended and is_spent(self.search) and not self.is_due

    @staticmethod
    def name(arm: Arm) -> str:
        """Return what an arm is called: the revision of its code if it brought any."""
        code = arm.submitted.get("code")
        return f"candidate {arm.number}" if code is None else str(code["revision"])[:SHOWN]

    def champion(self) -> dict[str, Any]:
        """Return the champion as plain values."""
        arm = self.campaign.champion
        return {"candidate": arm.number, "revision": None if arm.code is None else arm.code.revision}

    def amount(self, value: float) -> str:
        """Return a difference of the metric, in points for a share."""
        return f"{100 * value:.2f}" if is_share(self.campaign.quality.metric) else f"{value:.3g}"

    def verdict_on(self, request: int) -> Verdict:
        """Return the verdict on the candidate that a request submitted; raise RequestError for an unknown request."""
        events = self.stored.snapshot.events
        known = [e.rowid for e in events if e.kind == REQUESTED and e.payload.get("command") in (JUDGE, CLOSE)]
        if request not in known:
            had = f"its last one is {known[-1]}" if known else "it has had none"
            raise RequestError(f"request: campaign {self.study.name!r} has no request {request}; {had}")
        found = next((e for e in events if e.kind == ANSWERED and e.payload.get("request") == request), None)
        if found is None or "candidate" not in found.payload:
            refused = "" if found is None else str(found.payload.get("refused", ""))
            return Verdict(ledger=self, arm=None, refused=refused)
        number = found.payload["candidate"]
        decided = [e.rowid for e in events if e.kind == JUDGED and e.payload["candidate"] == number]
        again = bool(decided) and decided[-1] < found.rowid
        return Verdict(ledger=self, arm=self.campaign.find(number), again=again)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on all candidates."""
        return [Verdict(ledger=self, arm=arm) for arm in self.campaign.arms[1:]]

    def costs(self, arm: Arm) -> dict[str, list[float]]:
        """Return what a run of an arm and one of the champion it was compared with cost, as far as both are known."""
        pairs = {name: [self._cost(each, name) for each in (arm, arm.champion)] for name in COSTS}
        return {name: pair for name, pair in pairs.items() if all(map(math.isfinite, pair))}

    def _cost(self, arm: Arm | None, name: str) -> float:
        runs = [] if arm is None else [run for run in arm.runs.values() if run.state is TrialState.COMPLETE]
        if arm is None or not runs or name != "wall_seconds":
            return runs[0].metric(name) if runs else math.nan
        times = [run.metric(name) for run in runs[: arm.looked or len(runs)]]
        return math.exp(math.fsum(map(math.log, times)) / len(times)) if min(times) > 0 else math.nan

    def error_of(self, number: int | None) -> str:
        """Return the error of a trial, or an empty text."""
        return next((t.error or "" for t in self.stored.snapshot.trials if t.key.number == number), "")

    def spent(self) -> dict[str, float]:
        """Return the runs of the whole campaign, and the part of the error rate that is spent since it restarted."""
        rates = [self.campaign.rule.rate(k) for k in range(1, self.campaign.k + 1)]
        return {"runs": len(self.search.search_trials()), "error": math.fsum(rates)}


def read_campaign(name: str, locations: Locations) -> LedgerCampaign:
    """Read a campaign from its ledger; raise RequestError if the study is none."""
    return campaign_of(read_study(name, locations))


def campaign_of(stored: Stored) -> LedgerCampaign:
    """Return the campaign of a study that was read; raise RequestError if it is none."""
    if stored.study.campaign is None:
        raise RequestError(f"study {stored.study.name!r} is no campaign: its file has no `campaign`")
    (search,) = recorded_searches(stored.study, stored.snapshot).values()
    assert search.campaign is not None
    due = None
    with suppress(StudyFailedError):  # a driver says so; here, candidates get the numbers of their last look
        due = search.campaign.decision()
    return LedgerCampaign(stored=stored, search=search, is_due=due is not None)
