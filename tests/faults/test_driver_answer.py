"""No answer before every frozen configuration has ended: a real study killed while one confirmation of several has."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from ablate.engine.training.family import family
from support.faults import killing
from support.faults.study_runs import StudyRun
from support.page_reader import Reader

STUDY = """\
study: answered
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: {choices: [8, 16, 32, 64]}, depth: 1, mlp: none}
training: {epochs: 3, batch_size: 32, learning_rate: 1.0e-2}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 4}
confirm: {replicates: 2}
"""
SEARCH, CONFIRM = 4 * 3, 3  # reports of the search, and of one confirmation
CLAIMS = ("confirmed on fresh seeds", "no cheaper network", "none cheaper", "Most accurate", "Cheapest", "of the best")


@pytest.fixture
def run(tmp_path: Path) -> StudyRun:
    return StudyRun(folder=tmp_path, text=STUDY)


def seen(run: StudyRun) -> tuple[str, str]:
    """Return what `ablate status` prints, and the page that `ablate report` writes, as a reader sees it."""
    where = ("--runs-dir", str(run.runs))
    said = run.start("status", run.name, *where)
    assert said.wait() == 0, said.output
    written = run.start("report", run.name, *where)
    assert written.wait() == 0, written.output
    return said.output, Reader((run.home / "report" / "index.html").read_text(encoding="utf-8")).text


def test_there_is_no_answer_before_every_confirmation_has_ended(run: StudyRun) -> None:
    assert run.search(inject=partial(killing.at_report, "after", SEARCH + CONFIRM)).wait() == -9
    frozen = [t.config.source for t in run.trials() if t.config.stage == "confirm"]
    states = [str(t.state) for t in run.trials() if t.config.stage == "confirm"]
    assert states == ["COMPLETE"] + ["WAITING"] * (len(frozen) - 1)
    assert len(frozen) > 1
    terminal, page = seen(run)
    ended = f"1 of {len(frozen)} confirmations has ended"
    assert ended in terminal
    assert f"There is no answer yet: {ended}" in page
    assert "provisional" in terminal
    assert "provisional" in page
    for claim in CLAIMS:
        assert claim not in terminal
        assert claim not in page
    assert f"{len(frozen)} networks confirmed on fresh seeds" in run.finish()
    terminal, page = seen(run)
    assert f"{len(frozen)} networks confirmed on fresh seeds" in terminal
    assert f"{len(frozen)} networks confirmed on fresh seeds" in page
    assert "There is no answer yet" not in page
    assert "provisional" not in terminal + page


@pytest.mark.parametrize("reported", [1, 3])
def test_an_extended_search_has_no_answer_before_its_front_is_confirmed(run: StudyRun, reported: int) -> None:
    larger = run.text
    run.file.write_text(larger.replace("trials: 4", "trials: 2"))
    run.finish()
    run.file.write_text(larger)
    assert run.search("--extend", inject=partial(killing.at_report, "after", reported)).wait() == -9
    new = [t for t in run.trials() if t.config.stage == "search"][2:]
    assert [str(t.state) for t in new] == (["RUNNING"] if reported == 1 else ["COMPLETE"])
    terminal, page = seen(run)
    began = "1 search trial began after the front was frozen"
    for said in (" ".join(terminal.split()), page):
        assert said.count(f"There is no answer yet: {began}") == 1
        assert "provisional" in said
    for claim in CLAIMS:
        assert claim not in terminal
        assert claim not in page
    assert "confirmed on fresh seeds" in run.finish("--extend")
    terminal, page = seen(run)
    assert "provisional" not in terminal + page
    assert "There is no answer yet" not in page


def test_what_failed_in_confirmation_is_named(run: StudyRun) -> None:
    assert run.search(inject=partial(killing.failing, "confirm", "no luck with {width}")).wait() == 0
    failed = [t for t in run.trials() if t.config.stage == "confirm" and str(t.state) == "FAIL"]
    complete = [t for t in run.trials() if t.config.stage == "confirm" and str(t.state) == "COMPLETE"]
    assert len(failed) == 1
    assert complete
    number, width = failed[0].key.number, family(failed[0].config).model.width
    named = rf"1 failed in confirmation: trial {number} \(width {width}\): .*no luck with {width}"
    for said in seen(run):
        words = " ".join(said.split())
        assert re.search(named, words), words
        assert "There is no answer yet" not in words
