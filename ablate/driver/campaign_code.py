"""The code of a campaign: recorded when it opens, found for a change, and checked out before it runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ablate.base.errors import CodeDownError, RequestError
from ablate.core.code_version import SHORT, VERSIONS, Code, CodeVersion
from ablate.core.registry import TRAINABLES
from ablate.driver.options import RunOptions
from ablate.functions.code.changes import command_words
from ablate.functions.code.git import common_folder, git_names
from ablate.functions.code.guard import refuse_guarded
from ablate.functions.code.snapshot import Version, environment, snapshot
from ablate.functions.code.worktrees import checkout, refuse_unmakeable, remove
from ablate.ledger import EventRecord, Ledger, StudyWriter
from ablate.ledger.requests import ENVIRONMENT, OPENED
from ablate.studies.ledger_campaign import LedgerCampaign
from ablate.study import Study

NAMED = 5  # packages in a message
logger = logging.getLogger("ablate")


def record_code(writer: StudyWriter, ledger: Ledger, study: Study, options: RunOptions) -> None:
    """Record with which code of the current folder a campaign begins, or why it has none, once.

    Raises RequestError if it has none, and the study file has `guard`, `link` or `evaluate`.
    """
    campaign = study.campaign
    if campaign is None:
        return
    if opening(ledger, study) and _other_packages(ledger.events(study.name)):  # --code-changed
        writer.note(ENVIRONMENT, None, {"environment": environment()})
    if ledger.trials(study.name) or opening(ledger, study):
        return
    payload: dict[str, Any]
    try:
        if study.trainable in TRAINABLES.names():
            raise RequestError(f"its trainable {study.trainable!r} is part of ablate")
        found = snapshot(Path.cwd(), name=study.name, without=[options.runs_dir])
        refuse_guarded(found, found, campaign.guard)
        checkout(found, options.home(study.name) / VERSIONS, link=campaign.link)
        payload = {"repository": str(Path.cwd()), "inside": found.inside, "code": _code(found)}
        if not campaign.link and (unseen := _ignored_folders(options.runs_dir)):
            logger.warning("git ignores %s: a run sees of it only what `campaign.link` names", ", ".join(unseen))
    except RequestError as error:
        own = study.trainable in TRAINABLES.names()
        if campaign.guard or campaign.link or campaign.evaluate or not (own or _is_alone(Path.cwd())):
            raise
        payload = {"without": str(error)}
        if not own:
            logger.warning("the campaign judges settings alone (--set): %s", error)
    writer.note(OPENED, study.labels[0], {**payload, "environment": environment()})


def refuse_other_packages(events: Sequence[EventRecord]) -> None:
    """Raise RequestError if Python or the packages are not those with which the runs of a campaign began."""
    if changed := _other_packages(events):
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        raise RequestError(
            f"since the campaign was opened or continued, {', '.join(changed[:NAMED])}{more} changed: its runs would"
            " not be comparable. Install these versions again, or type --code-changed to continue all the same"
        )


def _other_packages(events: Sequence[EventRecord]) -> list[str]:
    """Return what differs from the environment that was noted last, in words."""
    noted = (event.payload for event in events if event.kind in (OPENED, ENVIRONMENT))
    known = [payload["environment"] for payload in noted if "environment" in payload]
    before, now = known[-1] if known else {}, environment() if known else {}
    names = sorted(before.keys() | now.keys())
    return [f"{n} {before.get(n, 'no')} -> {now.get(n, 'no')}" for n in names if before.get(n) != now.get(n)]


def remove_worktrees(found: LedgerCampaign, options: RunOptions) -> None:
    """Remove the worktrees of a campaign that needs none any more; git keeps the versions."""
    folder = options.home(found.study.name) / VERSIONS
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        remove(Path(found.campaign.opened["repository"]), place.absolute())


def code_of(found: LedgerCampaign, options: RunOptions, revision: str | None) -> dict[str, Any]:
    """Return the code of a revision for a change; None is the working tree of the current folder.

    Raises RequestError if the campaign has no code, if there is no such revision, or if it changes a guarded file.
    """
    campaign, name = found.campaign, found.study.name
    first, champion = campaign.arms[0].code, campaign.champion.code
    if first is None or champion is None:
        reason = campaign.opened.get("without", "no run has begun")
        raise RequestError(f"campaign {name!r} judges settings alone (--set), as it was opened without code: {reason}")
    reference, before = (
        snapshot(Path.cwd(), each.revision, name=name, program=each.program) for each in (first, champion)
    )
    version = snapshot(Path.cwd(), revision, name=name, reference=before, without=[options.runs_dir])
    inside = replace(version, inside=campaign.opened["inside"])
    words = command_words(found.study.trainable)
    scripts = [os.path.dirname(word) for word in words if word.endswith(".py") and not os.path.isabs(word)]
    refuse_guarded(inside, reference, campaign.asked.guard, scripts=scripts)
    refuse_unmakeable(inside, campaign.asked.link)
    return _code(version)


def checkouts(ledger: Ledger, study: Study, options: RunOptions) -> Callable[[str], None]:
    """Return what makes the worktrees that a trainable needs; it raises CodeDownError where it cannot."""
    if study.campaign is None:
        return lambda trainable: None

    @cache
    def make(tree: str) -> None:
        try:
            _make(opening(ledger, study), study, options, tree)
        except (RequestError, OSError) as error:
            again = f"Nothing is lost: correct it, then type ablate resume {study.name}"
            raise CodeDownError(f"code version {tree[:SHORT]}: {error}. {again}") from error

    def make_all(trainable: str) -> None:
        version = CodeVersion.of(trainable)
        for tree in () if version is None else version.trees:
            make(tree)

    return make_all


def _make(opened: Mapping[str, Any], study: Study, options: RunOptions, tree: str) -> None:
    """Make the worktree of a version that a campaign keeps."""
    assert study.campaign is not None
    repository = Path(opened["repository"])
    repository = repository if repository.is_dir() else Path.cwd()  # another machine, or it was moved
    version = snapshot(repository, f"refs/ablate/{study.name}/{tree[:SHORT]}", name=study.name)
    folder = options.home(study.name) / VERSIONS
    checkout(replace(version, inside=opened["inside"]), folder, link=study.campaign.link)


def opening(ledger: Ledger, study: Study) -> Mapping[str, Any]:
    """Return what is recorded of the code of a campaign, nothing for another study."""
    return next((event.payload for event in ledger.events(study.name) if event.kind == OPENED), {})


def _is_alone(folder: Path) -> bool:
    """Return whether a folder is in no git repository, or git is not installed."""
    try:
        common_folder(folder)
    except RequestError:
        return True
    return False


def _ignored_folders(runs: Path) -> list[str]:
    """Return the folders here that git ignores, but for `runs` and those of tools."""
    listed = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    names = [name for name in git_names(Path.cwd(), *listed) if name.endswith("/") and name.count("/") == 1]
    own = (runs.resolve(), *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)))
    return [name for name in names if not name.startswith((".", "__")) and Path(name).resolve() not in own]


def _code(version: Version) -> dict[str, Any]:
    return Code(
        revision=version.revision,
        tree=version.tree,
        patch=version.patch,
        program=version.program,
        dirty=version.is_dirty,
        requirements=version.changed_requirements,
    ).model_dump(mode="json")
