"""`ablate status`: finished, running or interrupted, what to type, what the budget still allows, front and best."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from typer.main import get_command

from ablate.cli import app as cli
from ablate.ledger import Ledger
from ablate.ledger.schema import lease_table
from ablate.results.report import build_page
from ablate.results.report.search import status_lines
from ablate.results.trials.results import Results
from support.commands import refused, run, succeed
from support.ledgers import raw_connection
from support.paths import TESTS
from support.searches import report_at, run_all
from support.status_driver import STUDY, Driver

COMPARISON = """\
study: looked
datasets: {digits: {patch: 4}}
model: {depth: 1}
training: {epochs: 2}
variants: [{name: a, model: {width: 8}}, {name: b, model: {width: 16}}]
protocol: paper
compare: {baseline: a}
"""


@pytest.fixture
def look(capfd: pytest.CaptureFixture[str]) -> Any:
    """Return what `ablate status` prints of a driver's study: its words, and its JSON."""

    def looked(driver: Driver, *more: str) -> tuple[str, dict[str, Any]]:
        command = ["status", driver.study.name, "--runs-dir", str(driver.runs), *more]
        out = succeed(capfd, *command)
        return " ".join(out.split()), json.loads(succeed(capfd, *command, "--json"))

    return looked


def test_an_interrupted_search_says_what_to_type_and_what_is_left(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path)
    driver.run(1)
    driver.clock.now += 600
    driver.run(2)
    driver.leave()
    words, found = look(driver)
    command = f"ablate resume looked --runs-dir {shlex.quote(str(driver.runs))}"
    assert f"Interrupted (digits: searching, more: searching). No driver is running. To continue: {command}" in words
    assert "Budget left: digits 2 of 4 trials, more 3 of 4 trials, 0:50:00 of 1:00:00 hours." in words
    assert (found["state"], found["finished"], found["resume"]) == ("interrupted", False, command)
    assert found["stage"] == {"digits": "search", "more": "search"}
    assert found["budget"] == {
        "trials": {"digits": {"planned": 4, "begun": 2, "left": 2}, "more": {"planned": 4, "begun": 1, "left": 3}},
        "tuning_trials": None,
        "wall_clock": {"seconds": 3600.0, "used": 600.0, "left": 3000.0},
        "gpu_hours": None,
    }
    assert found["ended_early"] == {}
    assert [row["trial"] for row in found["front"]["digits"]] == [0, 1]
    assert found["best"] == {"digits": None, "more": None}
    assert "once the search is over" in found["withheld"]["digits"]


def test_what_is_asked_for_is_what_the_command_line_takes(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path)
    driver.leave()
    words = shlex.split(look(driver)[1]["resume"])
    assert words[:3] == ["ablate", "resume", "looked"]
    resume = get_command(cli.app).commands["resume"]  # type: ignore[attr-defined]
    with resume.make_context("resume", words[2:]) as context:
        assert (context.params["study"], context.params["runs_dir"]) == ("looked", driver.runs)


@pytest.mark.services
def test_a_study_in_confirmation_has_no_best_before_every_confirmation_has_ended(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path)
    driver.run(9)  # the search is over at 8; the first confirmation has ended
    words, found = look(driver)
    assert "Running (digits: confirming, more: confirming). Driven by ada (process 12)" in words
    assert (found["state"], found["finished"], found["resume"]) == ("running", False, None)
    assert found["driver"]["here"]
    assert found["stage"] == {"digits": "confirm", "more": "confirm"}
    assert found["best"]["digits"] is None
    assert "There is no answer yet: 1 of 4 confirmations has ended" in found["withheld"]["digits"]
    run_all(driver.search)
    driver.leave()
    words, found = look(driver)
    assert "Finished: no trial is left to run." in words
    assert (found["state"], found["finished"], found["resume"]) == ("finished", True, None)
    assert found["stage"] == {"digits": "finished", "more": "finished"}
    assert found["withheld"] == {"digits": None, "more": None}
    best = max(found["front"]["digits"], key=lambda row: row["accuracy"])
    assert found["best"]["digits"] == best
    assert (best["split"], best["replicates"]) == ("test", 2)


@pytest.mark.services
def test_a_finished_study_that_was_given_more_to_confirm_is_not_finished(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path)
    run_all(driver.search)
    driver.leave()
    assert look(driver)[1]["finished"]
    more = driver.text.replace("replicates: 2", "replicates: 3")
    with Ledger.open(f"sqlite:///{driver.runs}/looked/ledger.sqlite") as ledger:
        fingerprint = driver.study.fingerprint()
        ledger.acquire("looked", file_text=more, fingerprint=fingerprint, seed=0, holder="ada").release()
    found = look(driver)[1]
    assert (found["state"], found["stage"]["digits"]) == ("interrupted", "confirm")


def test_spent_time_ends_the_search(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path, STUDY.replace("confirm: {replicates: 2}", "confirm: null"))
    driver.run(1)
    driver.clock.now += 3601
    run_all(driver.search)
    driver.leave()
    words, found = look(driver)
    assert (found["state"], found["budget"]["trials"]["digits"]) == ("finished", {"planned": 4, "begun": 1, "left": 0})
    assert "0:00:00 of 1:00:00 hours" in words


def test_hours_and_money_are_counted_and_an_early_end_has_its_reason(tmp_path: Path, look: Any) -> None:
    """A trial takes 2 seconds, by its reports; status and page have the same words."""
    spent = "budget: {gpu_hours: 0.1, price: 9}"
    driver = Driver(tmp_path, STUDY.replace("budget: {trials: 4, wall_clock: 1h}", spent))
    run_all(driver.search)
    study, snapshot = driver.study, driver.ledger.snapshot("looked")
    driver.leave()
    words, found = look(driver)
    begun = {name: one["begun"] for name, one in found["budget"]["trials"].items()}
    assert set(begun.values()) == {4}
    assert found["finished"]
    used = 2 * sum(begun.values()) / 3600
    assert found["budget"]["gpu_hours"] == {
        "hours": 0.1,
        "used": pytest.approx(used),
        "left": pytest.approx(0.1 - used),
        "price": 9.0,
    }
    assert f"{0.1 - used:.3g} of 0.1 GPU hours ({9 * (0.1 - used):.2f} of 0.90 at 9 each)" in words
    shown = dict(status_lines(Results.of(study, snapshot)))
    assert shown["Spent by the search"] == f"{used:.3g} of 0.1 GPU hours ({9 * used:.2f} of 0.90 at 9 each)"
    for name in begun:
        assert found["ended_early"][name] == "the search ended after 4 trials: no configuration of the space is left"
        assert f"{name}: {found['ended_early'][name]}." in words
        text = build_page(Results.of(study, snapshot)).html
        assert text.count(found["ended_early"][name]) == len(begun)


def test_a_comparison_has_its_cells(tmp_path: Path, look: Any) -> None:
    driver = Driver(tmp_path, COMPARISON)
    config = driver.search.next_trial()
    assert config is not None
    driver.search.report(config.key, report_at(config, 1))
    driver.leave()
    words, found = look(driver)
    assert "Interrupted (digits: training)" in words
    assert found["budget"]["trials"] == {"digits": {"planned": 2, "begun": 1, "left": 1}}
    assert [(cell["variant"], cell["metric"]) for cell in found["comparison"]] == [
        ("a", "val_accuracy"),
        ("b", "val_accuracy"),
    ]


@pytest.mark.services
def test_a_driver_whose_process_is_gone_drives_nothing(tmp_path: Path, look: Any) -> None:
    """The lease of a killed driver lasts for a minute; its process is known to be gone at once."""
    kill = f"""
import os, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.status_driver import Driver
Driver(Path({str(tmp_path)!r})).run(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", kill], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    command = [str(Path(sys.executable).parent / "ablate"), "status", "looked", "--json"]
    environment = os.environ | {"ABLATE_RUNS": str(tmp_path / "my runs")}
    seen = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(seen.stdout)["state"] == "interrupted"


def test_the_default_runs_folder_is_no_part_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Any
) -> None:
    driver = Driver(tmp_path)
    driver.run(1)
    driver.leave()
    monkeypatch.chdir(tmp_path)
    driver.runs = driver.runs.rename("runs")
    assert look(driver)[1]["resume"] == "ablate resume looked"


@pytest.mark.services
def test_a_ledger_elsewhere_is_part_of_the_command(tmp_path: Path, storage: str, look: Any) -> None:
    driver = Driver(tmp_path, storage=storage)
    driver.run(1)
    driver.leave()
    found = look(driver, "--storage", storage)[1]
    command = shlex.join(["ablate", "resume", "looked", "--runs-dir", str(driver.runs)])
    secret = storage.startswith("postgresql")  # it has a password
    expected = f"ABLATE_STORAGE=URL {command}" if secret else f"{command} --storage {storage}"
    assert (found["state"], found["resume"]) == ("interrupted", expected)


@pytest.mark.services
@pytest.mark.parametrize("minutes", [-90, 90], ids=["behind", "ahead"])
def test_a_driver_of_another_machine_is_asked_whatever_the_clocks_say(
    tmp_path: Path, look: Any, capfd: pytest.CaptureFixture[str], minutes: int
) -> None:
    """The lease's times and place are those of another machine, whose clock differs from this one's."""
    driver = Driver(tmp_path)
    driver.clock.now += 60 * minutes
    driver.run(1)
    driver.writer.renew()
    with raw_connection(driver.ledger) as connection:
        connection.execute(update(lease_table).values(place="another machine"))
        connection.commit()
    words, found = look(driver)
    assert "Running (digits: searching, more: searching). Driven by ada (process 12): its lease was last" in words
    assert f"If that driver is gone, type: {found['resume']}" in words
    assert (found["state"], found["driver"]["here"]) == ("running", False)
    assert found["driver"]["renewed"] == driver.clock.now
    for command, says in [
        (
            ["stop", "looked"],
            "If it still runs, ada (process 12) pauses its trials and ends. To continue: ablate resume",
        ),
        (
            ["enqueue", "looked", "model.width=32", "--dataset", "more"],
            "ada (process 12) takes it up within seconds if it still runs",
        ),
    ]:
        code, out, err = run(capfd, *command, "--runs-dir", str(driver.runs))
        assert (code, says in " ".join(out.split())) == (0, True), out + err
    (asked,) = [request for request in driver.ledger.requests("looked") if request.command == "stop"]
    assert asked.term == driver.writer.term
    driver.leave()
    assert "no driver runs it" in refused(capfd, "stop", "looked", "--runs-dir", str(driver.runs))
