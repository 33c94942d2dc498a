"""Why a request to the driver of a study is refused: one rule for the command that asks and the driver that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from ablate.base.errors import did_you_mean
from ablate.core.registry import FAMILY
from ablate.core.trial import TrialState, place_of
from ablate.ledger.requests import CLOSE, ENQUEUE, JUDGE, PRUNE, RETRY, STOP, Change, Request
from ablate.study import Study
from ablate.study.design import merge_settings
from ablate.study.given import given_faults
from ablate.tuning.recorded import RecordedSearch, is_spent

if TYPE_CHECKING:
    from ablate.tuning.stages.candidate_runs import Campaign

MORE = "raise `budget` in the study file, then type ablate campaign open FILE --extend"
TUNED = "the rows are trained with the values that were best without it"  # why a tuning trial is not tried again


def refusal(request: Request, study: Study, search: RecordedSearch | None) -> str | None:
    """Return why no driver may carry out a request now, or None.

    `search` is the one of the request's data set; None if this driver does not search it.
    """
    if request.fault or request.command == STOP:
        return request.fault or None
    if (rule := _fixed_order(study, str(request.command))) is not None:
        return rule
    if request.dataset not in study.datasets:
        return f"there is no data set {request.dataset!r}. {did_you_mean(str(request.dataset), study.datasets)}"
    if request.command in (JUDGE, CLOSE) and study.campaign is None:
        return "the study is no campaign: its file has no `campaign`"
    if search is None:
        return None
    if search.campaign is not None and request.command in (JUDGE, CLOSE):
        return _about_campaign(request, search, search.campaign)
    if request.command == ENQUEUE:
        faults = given_faults(study, search.dataset, request.parameters or {})
        given = "; ".join(f"{setting} {rule}".strip().rstrip(".") for setting, rule in faults)
        return given or ("every configuration of the space is in the study" if search.exhausted else None)
    return _about_trial(request, search)


def _fixed_order(study: Study, command: str) -> str | None:
    """Return why the trials of a study or their order must not depend on the moment at which a user asks, or None."""
    if study.compare is not None and command in (ENQUEUE, PRUNE):
        rule = "the study is a comparison: it trains its whole design, each trial in full"
        return f"{rule}. Nothing can be added or pruned"
    if study.campaign is not None and command == ENQUEUE:
        return "the study is a campaign, which decides by itself what runs: type ablate judge"
    if study.deterministic is not None:
        instead = ". Put the configuration into `start:` of a study file" if command == ENQUEUE else ""
        rule = "the study is deterministic: its trials must not depend on the moment at which a user asks"
        return f"{rule}, so `ablate {command}` is refused{instead}"
    return None


def _about_campaign(request: Request, search: RecordedSearch, campaign: Campaign) -> str | None:
    if campaign.closed is not None:
        return "the campaign is closed. A further one needs another name, and another test split"
    if request.command == CLOSE:
        withdraw = f"withdraw it: ablate prune {campaign.study.name} TRIAL"
        may = not campaign.open or (is_spent(search) and all(run.state.finished for run in search.trials.values()))
        return None if may else f"a candidate is open: judge it to the end, or {withdraw}"
    if is_spent(search):
        return f"the budget is spent: {MORE}"
    try:
        change = Change.model_validate(request.parameters)
    except ValidationError as error:
        return f"it is no change ({'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']})"
    study, known = campaign.study, campaign.study.given_for(campaign.dataset)
    unknown = [name for name in change.settings if study.trainable != FAMILY and name not in known]
    if change.code is not None and campaign.arms[0].code is None:
        return f"the campaign has no code: {campaign.opened.get('without', 'it was opened without')}"
    if unknown or not (change.settings or change.code):
        asked = unknown[0] if unknown else "nothing"
        return f"{asked} is no setting of the study file. {did_you_mean(asked, known)}"
    try:
        settings = merge_settings(campaign.champion.settings, change.settings)
        same = campaign.alike(settings, change.code or campaign.champion.code)
    except ValidationError as error:
        return f"impossible: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}"
    except (TypeError, ValueError) as error:
        return f"impossible: {error}"
    what = "configuration" if change.code is None else "program"
    return f"it is the champion's {what}" if same is campaign.champion else None


def _about_trial(request: Request, search: RecordedSearch) -> str | None:
    trial = search.trials.get(-1 if request.trial is None else request.trial)
    if trial is None:
        return "there is no such trial"
    if request.command == RETRY and trial.state is not TrialState.FAIL:
        return f"trial {trial.key} is {trial.state}: only a trial that is FAIL is tried again"
    if request.command == RETRY and not search.may_retry(trial):
        return f"trial {trial.key} is a tuning trial: {TUNED}"
    if request.command == PRUNE and search.campaign is not None:
        arm = search.campaign.find(place_of(trial.sampler_state) or 0)
        if arm.state != "open":
            return f"trial {trial.key} is no run of an open candidate: only such a one is pruned"
    if request.command == PRUNE and trial.state.finished:
        return f"trial {trial.key} has ended: it is {trial.state}. Only a trial that has not is pruned"
    if request.command == PRUNE and trial.config.stage != "search":
        kind = "a tuning trial" if trial.config.stage == "tune" else "a confirmation"
        return f"trial {trial.key} is {kind}, which is always trained in full"
    return None
