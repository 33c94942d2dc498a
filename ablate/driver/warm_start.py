"""Warm start: what the sampler of a new study is told of another study's trials, recorded once at its beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ablate.base.errors import RequestError
from ablate.driver.options import RunOptions
from ablate.ledger import Ledger, StudyWriter
from ablate.studies.stored import read_study
from ablate.study import Study
from ablate.tuning.recorded import recorded_searches
from ablate.tuning.warm_start import WARM_START, find_observations


def find(ledger: Ledger, study: Study, options: RunOptions) -> dict[str, Any] | None:
    """Return the observations that `--from` asks for, or None if there is nothing to record.

    A study that has recorded them needs the other study no more. Raises RequestError if the study began without them
    or with those of another study, if there is no such study, or if its trials do not fit (`find_observations`).
    """
    if options.from_study is None:
        return None
    recorded = _recorded(ledger, study)
    if recorded is not None:
        if recorded != options.from_study:
            raise RequestError(
                f"--from {options.from_study}: study {study.name!r} began with the trials of {recorded!r}."
                " Leave --from out, or give the study another name."
            )
        return None
    if ledger.trials(study.name):
        raise RequestError(
            f"--from {options.from_study}: study {study.name!r} has begun without it, and that cannot change midway."
            " Leave --from out, or give the study another name."
        )
    if options.from_study == study.name:
        raise RequestError(f"--from {options.from_study}: this is the study itself. Name another one.")
    other = read_study(options.from_study, replace(options, store=None))
    return find_observations(study, recorded_searches(other.study, other.snapshot))


def record(writer: StudyWriter, ledger: Ledger, study: Study, found: dict[str, Any] | None) -> str | None:
    """Record observations unless the study has some; return a line on what was taken, or None."""
    if found is None or _recorded(ledger, study) is not None:
        return None
    writer.note(WARM_START, None, found)
    return (
        f"Warm start: the sampler is told of {found['taken']} of the {found['finished']} finished search trials of"
        f" study {found['study']!r}."
    )


def _recorded(ledger: Ledger, study: Study) -> str | None:
    return next((str(e.payload["study"]) for e in ledger.events(study.name) if e.kind == WARM_START), None)
