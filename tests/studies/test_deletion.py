"""`ablate delete`: what goes, what stays, and what is never touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ablate.ledger import Ledger
from support.commands import refused, run, succeed
from support.status_driver import STUDY, Driver


def filled(folder: Path, storage: str | None = None) -> Driver:
    """Return a driver of a study of 3 trials that has left, with files of a trial in its home."""
    driver = Driver(folder, storage=storage)
    driver.run(3)
    files = driver.runs / "looked" / "checkpoints" / "digits" / "000000" / "seed-0"
    files.mkdir(parents=True)
    (files / "model.bin").write_bytes(bytes(1_500_000))
    owner = {"ledger_id": driver.ledger.id, "storage": driver.ledger.url}
    (driver.runs / "looked" / "ledger.json").write_text(json.dumps(owner))
    return driver


def delete(driver: Driver, *words: str, name: str = "looked") -> list[str]:
    """Return the words that delete a driver's study."""
    return ["delete", name, "--runs-dir", str(driver.runs), *words]


def test_it_says_what_goes_and_what_stays_and_asks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = filled(tmp_path)
    driver.leave()
    home = driver.runs / "looked"
    code, out, err = run(capfd, *delete(driver))
    assert code == 2
    assert f"goes:  3 trials and 6 reports in sqlite:///{home}/ledger.sqlite" in out.splitlines()[1]
    assert out.splitlines()[2].startswith(f"  goes:  {home} (")
    assert "MB in" in out.splitlines()[2]
    assert out.splitlines()[-1] == "  stays: what other trackers show, your code and your data"
    assert "nothing was deleted. To delete study 'looked' without a question, type --yes" in err
    assert (home / "ledger.sqlite").exists()
    assert succeed(capfd, *delete(driver, "--yes")).splitlines()[-1] == "Study 'looked' is deleted."
    assert not home.exists()
    assert list(driver.runs.iterdir()) == []
    assert "there is no study in" in refused(capfd, *delete(driver, "--yes"))


@pytest.mark.parametrize("answer", [True, False])
def test_the_answer_counts(
    answer: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path)
    driver.leave()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question: answer)
    code, out, _ = run(capfd, *delete(driver))
    assert code == (0 if answer else 1)
    assert ("Nothing was deleted." in out) is not answer
    assert (driver.runs / "looked").exists() is not answer


def test_a_study_that_is_driven_is_refused_and_nothing_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = filled(tmp_path)
    code, _, err = run(capfd, *delete(driver, "--yes"))
    assert code == 75
    assert "study 'looked' is held by ada (process 12)" in err
    assert (driver.runs / "looked" / "checkpoints" / "digits" / "000000" / "seed-0" / "model.bin").exists()
    assert len(driver.ledger.trials("looked")) == 3
    driver.leave()


def test_no_link_is_followed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = filled(tmp_path)
    driver.leave()
    home, outside = driver.runs / "looked", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    (home / "models").symlink_to(outside)
    (home / "checkpoints" / "digits" / "000000" / "link").symlink_to(outside / "kept.txt")
    succeed(capfd, *delete(driver, "--yes"))
    assert not home.exists()
    assert (outside / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize("linked", ["home", "ledger.sqlite", "ledger.json"])
def test_a_linked_home_or_ledger_is_refused(linked: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = filled(tmp_path)
    driver.leave()
    home, elsewhere = driver.runs / "looked", tmp_path / "elsewhere"
    place = home if linked == "home" else home / linked
    shutil.move(place, elsewhere)
    place.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*")) if linked == "home" else elsewhere.read_bytes()
    code, _, err = run(capfd, *delete(driver, "--yes"))
    assert code in (2, 75)
    assert "link" in err, err
    assert (sorted(elsewhere.rglob("*")) if linked == "home" else elsewhere.read_bytes()) == before


@pytest.mark.parametrize("name", ["../looked", "a/b", "/etc", "..", ".", "", "looked/"])
def test_a_path_is_no_name(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = filled(tmp_path)
    driver.leave()
    assert "is no name of a study" in refused(capfd, *delete(driver, "--yes", name=name))
    assert (driver.runs / "looked" / "ledger.sqlite").exists()


def test_a_mistyped_name_suggests_the_known_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = filled(tmp_path)
    driver.leave()
    assert "Did you mean 'looked'?" in refused(capfd, *delete(driver, "--yes", name="loked"))


def test_of_a_shared_ledger_other_studies_stay_and_a_new_one_may_have_the_name(
    storage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Driver(tmp_path / "other", STUDY.replace("study: looked", "study: stays"), storage)
    other.run(2)
    other.leave()
    driver = filled(tmp_path, storage)
    driver.leave()
    foreign = tmp_path / "foreign" / "looked"
    foreign.mkdir(parents=True)
    (foreign / "mine.txt").write_text("mine")
    where = ["--storage", storage, "--yes"]
    _, out, _ = run(capfd, "delete", "looked", "--runs-dir", str(tmp_path / "foreign"), "--storage", storage)
    assert f"stays: {foreign}: it does not say that it belongs to this ledger" in out
    succeed(capfd, *delete(driver, *where))
    assert not (driver.runs / "looked").exists()
    assert (foreign / "mine.txt").exists()
    with Ledger.open(storage) as ledger:
        assert [record.name for record in ledger.studies()] == ["stays"]
        assert (len(ledger.trials("stays")), ledger.trials("looked"), ledger.reports("looked")) == (2, [], [])
    assert "'looked' is not in" in refused(capfd, *delete(driver, *where))
    again = Driver(tmp_path / "again", storage=storage)
    again.run(1)
    assert len(again.ledger.trials("looked")) == 1
    again.leave()


def test_a_killed_deletion_is_finished_by_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path)
    driver.leave()
    with monkeypatch.context() as patch:
        patch.setattr("ablate.ledger.StudyWriter.delete_study", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(capfd, *delete(driver, "--yes"))[0] == 130
    assert not (driver.runs / "looked" / "checkpoints").exists()
    succeed(capfd, *delete(driver, "--yes"))
    assert not (driver.runs / "looked").exists()
