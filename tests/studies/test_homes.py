"""A home belongs to one ledger, and the ledger knows where a study's checkpoints and tracking are."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ablate.driver import run as drive
from ablate.driver.progress import ProgressDisplay
from ablate.ledger import Ledger
from ablate.studies import homes as places
from support.commands import TINY, run

OPTIONS = ("--executor", "local", "--device", "cpu", "--tracker", "none")
ONE = TINY.replace("trials: 3", "trials: 1").replace("{replicates: 2}", "null")
Capture = pytest.CaptureFixture[str]


class Study:
    """The files of one small study in a folder, and the command that searches it."""

    def __init__(self, folder: Path, capfd: Capture) -> None:
        self.folder, self.capfd = folder, capfd
        self.file, self.runs = folder / "tiny.yaml", folder / "runs"
        self.home = self.runs / "tiny"
        self.file.write_text(ONE)

    def search(self, *more: str, command: tuple[str, ...] = ()) -> tuple[int, str, str]:
        words = command or ("search", str(self.file))
        return run(self.capfd, *words, "--runs-dir", str(self.runs), *OPTIONS, *more)

    def report(self, storage: str) -> tuple[int, str, str]:
        return run(self.capfd, "report", "tiny", "--runs-dir", str(self.runs), "--storage", storage)

    def succeed(self, *more: str, command: tuple[str, ...] = ()) -> None:
        code, _, err = self.search(*more, command=command)
        assert code == 0, err

    def refused(self, *more: str, command: tuple[str, ...] = ()) -> str:
        """Return what is said of a search that is refused."""
        code, _, err = self.search(*more, command=command)
        assert code == 2, err
        return err

    def contents(self) -> dict[str, bytes]:
        """Return all files but SQLite's own beside its databases."""
        files = (file for file in self.folder.rglob("*") if file.is_file() and not file.name.endswith(("-wal", "-shm")))
        return {str(file.relative_to(self.folder)): file.read_bytes() for file in files}

    def longer(self) -> None:
        """Ask for one trial more, so that there is something to do."""
        self.file.write_text(ONE.replace("trials: 1", "trials: 2"))


@pytest.fixture
def study(tmp_path: Path, capfd: Capture) -> Study:
    return Study(tmp_path, capfd)


@pytest.mark.services
@pytest.mark.parametrize("there", [True, False], ids=["folder", "no folder"])
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "of an older ablate"])
def test_a_mistyped_storage_is_refused_and_makes_nothing(study: Study, there: bool, marked: bool) -> None:
    study.succeed()
    if not marked:
        (study.home / "ledger.json").unlink()
    other = study.folder / "other" / "ledger.sqlite"
    if there:
        other.parent.mkdir()
    before = study.contents()
    assert study.report(f"sqlite:///{other}")[0] != 0
    for command in ((), ("resume", "tiny")):
        code, _, err = study.search("--storage", f"sqlite:///{other}", command=command)
        assert len(err.strip().splitlines()) == 1, err
        if not command:
            assert code == 2, err
            said = f"{study.home.absolute()} belongs to the ledger sqlite:///{study.home}/ledger.sqlite, not to "
            assert f"{said.replace(str(study.home.absolute()), str(study.home))}sqlite:///{other}" in err
            assert "Leave --storage out" in err
    assert study.contents() == before
    assert other.parent.exists() == there


@pytest.mark.services
def test_a_home_is_not_shared_with_another_ledger_that_exists(study: Study, tmp_path_factory: Any) -> None:
    other = Study(tmp_path_factory.mktemp("other"), study.capfd)
    other.succeed()
    study.succeed()
    before = study.contents()
    assert "belongs to the ledger" in study.refused("--storage", f"sqlite:///{other.home}/ledger.sqlite")
    code, _, err = study.report(f"sqlite:///{other.home}/ledger.sqlite")
    assert (code, "belongs to the ledger" in err) == (2, True), err
    assert study.contents() == before


@pytest.mark.services
def test_a_new_ledger_outside_the_home_needs_its_folder(study: Study) -> None:
    folder = study.folder / "ledgers"
    url = f"sqlite:///{folder}/all.sqlite"
    assert f"the folder {folder} does not exist" in study.refused("--storage", url)
    assert not study.runs.exists()
    folder.mkdir()
    study.succeed("--storage", url)
    assert json.loads((study.home / "ledger.json").read_text())["storage"] == url
    assert f"Type --storage {url}" in study.refused()
    assert not (study.home / "ledger.sqlite").exists()


@pytest.mark.services
@pytest.mark.parametrize("change", ["copied home", "moved ledger", "restored ledger", "home deleted", "two homes"])
def test_what_is_still_the_same_ledger_continues(change: str, study: Study, storage: str) -> None:
    inside = change in ("copied home", "moved ledger", "restored ledger")
    if inside and not storage.startswith("sqlite"):
        pytest.skip("the ledger is in the home")
    more = () if inside else ("--storage", storage)
    study.succeed(*more)
    if change == "copied home":
        shutil.move(study.runs, study.folder / "elsewhere")
        study.runs = study.folder / "elsewhere"
    elif change == "moved ledger":
        with sqlite3.connect(study.home / "ledger.sqlite") as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.close()
        shutil.move(study.home / "ledger.sqlite", study.folder / "moved.sqlite")
        more = ("--storage", f"sqlite:///{study.folder}/moved.sqlite")
    elif change == "restored ledger":
        with sqlite3.connect(study.home / "ledger.sqlite") as one, sqlite3.connect(study.folder / "copy") as other:
            one.backup(other)
        one.close()
        other.close()
        study.longer()
        study.succeed("--extend")
        for file in study.home.glob("ledger.sqlite*"):
            file.unlink()
        shutil.copy(study.folder / "copy", study.home / "ledger.sqlite")
    elif change == "home deleted":
        shutil.rmtree(study.home)
    else:
        study.runs = study.folder / "second machine"
    study.longer()
    study.succeed("--extend", *more)
    owner = json.loads((study.runs / "tiny" / "ledger.json").read_text())
    url = more[1] if more else f"sqlite:///{study.runs}/tiny/ledger.sqlite"
    with Ledger.open(url, create=False) as opened:
        assert (owner["ledger_id"], owner["storage"]) == (opened.id, opened.url)
        assert len(opened.trials("tiny")) == 2


@pytest.mark.services
def test_checkpoints_of_a_study_that_the_ledger_does_not_know_are_not_taken(study: Study) -> None:
    study.succeed()
    for file in study.home.glob("ledger.*"):
        file.unlink()
    assert "holds checkpoints of a study 'tiny'" in study.refused()


@pytest.mark.services
def test_a_store_belongs_to_one_ledger_too(study: Study, tmp_path_factory: Any) -> None:
    store = str(study.folder / "store")
    study.succeed("--store", store)
    other = Study(tmp_path_factory.mktemp("other"), study.capfd)
    assert f"{store}/tiny belongs to the ledger" in other.refused("--store", store)


@pytest.mark.services
@pytest.mark.parametrize("command", [(), ("resume", "tiny")], ids=["search", "resume"])
def test_the_store_is_known_and_another_is_refused_unless_asked_for(study: Study, command: tuple[str, ...]) -> None:
    store, other = str(study.folder / "store"), str(study.folder / "other")
    study.succeed("--store", store)
    assert list(Path(store).rglob("*.safetensors"))
    if not command:
        study.longer()
    study.succeed(*([] if command else ["--extend"]), command=command)
    assert not list(study.home.rglob("*.safetensors"))
    with Ledger.open(f"sqlite:///{study.home}/ledger.sqlite", create=False) as ledger:
        assert {t.key.number for t in ledger.trials("tiny") if t.attempt != 1} == set()
    err = study.refused("--store", other, command=command)
    assert f"--store {other}: study 'tiny' keeps its checkpoints in {store}." in err
    assert not Path(other).exists()
    shown = run(study.capfd, "trial", "tiny", "0", "--json", "--runs-dir", str(study.runs))[1]
    assert str(json.loads(shown)["checkpoint"]).startswith(f"{store}/tiny/")
    shutil.copytree(store, other)
    study.succeed("--store", other, "--relocate", command=command)
    with Ledger.open(f"sqlite:///{study.home}/ledger.sqlite", create=False) as ledger:
        record = ledger.study("tiny")
        assert record is not None
        assert record.store == other


@pytest.mark.services
def test_tracking_is_known_and_another_is_refused_unless_asked_for(study: Study) -> None:
    one, other = (f"sqlite:///{study.folder}/{name}.db" for name in ("one", "other"))
    tracked = ("--tracker", "mlflow")
    study.succeed(*tracked, "--tracking-uri", one)
    study.longer()
    study.succeed("--extend", *tracked)
    assert not (study.runs / "mlflow.db").exists()
    assert f"study 'tiny' is shown in {one}" in study.refused(*tracked, "--tracking-uri", other)
    study.succeed(*tracked, "--tracking-uri", other, "--relocate")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://AKIA:a/b@c@bucket/prefix?region=eu&secret_key=x", "s3://bucket/prefix?region=eu"),
        ("postgresql+psycopg://ada:p@ss@db/mlflow?sslpassword=x", "postgresql+psycopg://ada@db/mlflow"),
        ("https://ada:pw@mlflow.example.org/a", "https://mlflow.example.org/a"),
        ("http://mlflow:5000", "http://mlflow:5000"),
        ("/mnt/checkpoints", "/mnt/checkpoints"),
        ("sqlite:////abs/mlflow.db", "sqlite:////abs/mlflow.db"),
        ("default", "default"),
    ],
)
def test_what_the_ledger_remembers_holds_no_secret(url: str, kept: str) -> None:
    assert places.lasting(url) == kept


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_an_interruption_names_the_command_that_continues(
    number: signal.Signals, code: int, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(number)

    monkeypatch.setattr(drive, "search", interrupted)
    study.runs = study.folder / "my runs"
    secret = "postgresql+psycopg://ada:hunter2@db/ablate"
    found, _, err = study.search("--gpus", "0", "--storage", secret, "--store=s3://K:hunter3@b/p", "--takeover")
    assert found == code
    assert "hunter" not in err
    said = err.strip().partition("To continue: ")[2]
    words = shlex.split(said)
    assert words[:2] == ["ABLATE_STORAGE=URL", "ABLATE_STORE=URL"]
    wanted = ["ablate", "search", str(study.file), "--runs-dir", str(study.runs), *OPTIONS, "--gpus", "0"]
    assert words[2:] == wanted


@pytest.mark.services
def test_the_name_of_a_study_in_place_of_its_file_is_told_how_to_continue(study: Study) -> None:
    study.succeed()
    assert f"ablate resume tiny --runs-dir {study.runs}" in study.refused(command=("search", "tiny"))
    assert "resume" not in study.refused(command=("search", "tinier"))


def interrupt_after_a_report(study: Study, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: ProgressDisplay) -> None:
        with Ledger.open(storage, create=False) as ledger:
            if ledger.reports("tiny"):
                raise KeyboardInterrupt(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressDisplay, "update", update)
        code, _, err = study.search("--storage", storage)
    assert code == 130, err


@pytest.mark.services
def test_trials_in_training_do_not_begin_again_in_a_home_without_their_checkpoints(
    study: Study, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after_a_report(study, storage, monkeypatch)
    first, study.runs = study.runs, study.folder / "second machine"
    err = study.refused("--storage", storage, command=("resume", "tiny"))
    assert f"{study.runs}/tiny holds no checkpoints of study 'tiny', which keeps them in its home" in err
    assert "1 trial in training would begin again" in err
    assert socket.gethostname() in err
    assert not study.runs.exists()
    shutil.copytree(first, study.runs)
    study.succeed("--storage", storage)
    with Ledger.open(storage, create=False) as ledger:
        (trial,) = ledger.trials("tiny")
        assert trial.state.finished


@pytest.mark.services
def test_trials_in_training_begin_again_in_another_home_where_that_is_asked_for(
    study: Study, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after_a_report(study, storage, monkeypatch)
    study.runs = study.folder / "second machine"
    study.succeed("--storage", storage, "--relocate")


@pytest.mark.services
def test_a_ledger_that_was_made_anew_at_the_same_place_is_named_as_that(study: Study) -> None:
    url = f"sqlite:///{study.folder}/all.sqlite"
    study.succeed("--storage", url)
    for file in study.folder.glob("all.sqlite*"):
        file.unlink()
    err = study.refused("--storage", url)
    assert f"belongs to the ledger {url}, which is not there any more. Put it back, or move that folder away" in err
    (study.folder / "other").mkdir()
    other = Study(study.folder / "other", study.capfd)
    other.succeed("--storage", url)
    err = study.refused("--storage", url)
    assert f"belongs to a former ledger {url}; the one that is there now was made anew. Put the former" in err


@pytest.mark.parametrize("command", ["search", "compare"])
def test_the_suggested_command_names_the_ledger_too(study: Study, command: str) -> None:
    url = f"sqlite:///{study.folder}/all.sqlite"
    study.succeed("--storage", url)
    err = study.refused("--storage", url, command=(command, "tiny"))
    assert f"ablate resume tiny --runs-dir {study.runs} --storage {url}" in err
