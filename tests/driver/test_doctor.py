"""`ablate doctor` finds what a study lacks before it starts, and leaves no trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import psycopg
import pytest

import ablate.base.files
from ablate.base.errors import CheckpointDownError, RequestError
from ablate.cli.cluster import is_sound
from ablate.driver import run as drive
from ablate.driver.doctor import Examination, examine, look_until
from ablate.driver.options import RunOptions
from ablate.ledger import Ledger
from support.postgres import PASSWORD, PostgresServer

STUDY = "study: small\ndatasets: {digits: {patch: 4}}\nmodel: {width: 8, depth: 1, mlp: none}\nbudget: {trials: 1}\n"


def findings(file: Path | None = None, **settings: object) -> dict[str, tuple[bool, str]]:
    return {each.what: (each.good, each.seen) for each in examine(RunOptions(**settings), file)}  # type: ignore[arg-type]


def test_a_sound_machine_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    found = findings(tmp_path / "small.yaml", runs_dir=tmp_path / "runs", store=f"file://{tmp_path}/store")
    assert all(good for good, _ in found.values()), found
    assert list(found) == ["software", "runs", "ledger", "store", "tracking", "study", "devices"]
    assert "torch 2" in found["software"][1]
    assert found["study"][1] == "small: digits, all data here"
    assert not (tmp_path / "runs").exists()
    assert [p for p in (tmp_path / "store").rglob("*") if p.is_file()] == []


@pytest.mark.services
def test_every_fault_is_found_at_once_and_none_shows_a_password(tmp_path: Path) -> None:
    secret = "pa55word"
    found = findings(
        Path("search_spaces/nothing.yaml"),
        runs_dir=tmp_path,
        storage=f"postgresql+psycopg://ada:{secret}@127.0.0.1:9/ablate",
        store="s3://nowhere/at-all?endpoint_override=127.0.0.1:9&scheme=http",
        tracking_uri=f"http://ada:{secret}@127.0.0.1:9",
    )
    assert {what for what, (good, _) in found.items() if not good} == {"ledger", "store", "tracking", "study"}
    assert secret not in repr(found)
    assert all("\n" not in seen for _, seen in found.values())


def test_an_empty_database_will_do_and_stays_empty(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.empty()
    good, seen = findings(runs_dir=tmp_path, storage=url)["ledger"]
    assert good
    assert seen.endswith("there is no ledger here yet; the first study makes one")
    assert findings(runs_dir=tmp_path, storage=url)["ledger"] == (good, seen)
    with Ledger.open(url):
        pass
    assert findings(runs_dir=tmp_path, storage=url)["ledger"][1].endswith(": 0 studies")
    assert PASSWORD not in seen


def test_a_wrong_password_and_a_wrong_database_are_refused(postgres_server: PostgresServer, tmp_path: Path) -> None:
    wrong = {"password": postgres_server.url(password="no"), "database": postgres_server.url("nowhere")}
    for what, url in wrong.items():
        good, seen = findings(runs_dir=tmp_path, storage=url)["ledger"]
        assert not good
        assert what in seen


@pytest.mark.parametrize("text", ["study: [", STUDY.replace("digits", "digitz")])
def test_a_faulty_study_is_a_fault(text: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(text)
    good, seen = findings(tmp_path / "small.yaml", runs_dir=tmp_path)["study"]
    assert not good
    assert "small.yaml:" in seen


STORE = "s3://AKIAME:hunter2@bucket/prefix?session_token=tr0ub4dor"


class OneFile:
    """A store that hands out what it got, or what it was told to, or fails."""

    def __init__(self, *, returned: bytes | None = None, error: str = "") -> None:
        self.files: dict[str, bytes] = {}
        self.returned, self.error = returned, error

    def write(self, name: str, content: bytes) -> None:
        if self.error:
            raise OSError(self.error)
        self.files[name] = content

    def read(self, name: str) -> bytes:
        return self.files[name] if self.returned is None else self.returned

    def remove(self, name: str) -> None:
        del self.files[name]


@pytest.mark.parametrize(
    ("folder", "good", "said"),
    [
        (OneFile(), True, "s3://***@bucket/prefix: written, read and removed a file"),
        (OneFile(returned=b""), False, "s3://***@bucket/prefix: what was written does not come back"),
        (OneFile(returned=b"writteN"), False, "s3://***@bucket/prefix: what was written does not come back"),
        (OneFile(error="no such\nbucket"), False, "s3://***@bucket/prefix: cannot be written (no such bucket)"),
    ],
    ids=["sound", "returns-nothing", "returns-other-bytes", "fails"],
)
def test_a_store_is_written_read_back_and_named_without_its_credentials(
    folder: OneFile, good: bool, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ablate.base.files, "open_folder", lambda _: folder)
    found = findings(runs_dir=tmp_path, store=STORE)
    assert found["store"] == (good, said)
    assert folder.files == {}, "nothing stays"


def test_a_report_that_a_store_does_not_take_is_said_without_the_store_s_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no such bucket")

    monkeypatch.setattr(drive, "copy_into", fails)
    tracker = SimpleNamespace(log_models=lambda *_, **__: None, log_artifacts=lambda _: None)
    monkeypatch.setattr(drive, "select_networks", lambda *_: [])
    ledger, study = SimpleNamespace(snapshot=lambda _: None), SimpleNamespace(name="small")
    settings = RunOptions(runs_dir=tmp_path, store=STORE)
    with pytest.raises(CheckpointDownError) as refused:
        drive._publish(tracker, ledger, study, tmp_path, settings)  # type: ignore[arg-type]
    assert str(refused.value) == "--store s3://***@bucket/prefix: the report cannot be written there: no such bucket"


def test_a_folder_of_runs_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(RequestError, match=r"file\S*: cannot be used \(Not a directory\)\. Choose another folder"):
            findings(runs_dir=tmp_path / place)
    good, seen = findings(runs_dir=Path("/proc/runs"))["runs"]
    assert not good
    assert seen.startswith("/proc: cannot be written")
    assert findings(runs_dir=tmp_path / "not" / "yet")["runs"][0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_role_that_may_not_make_tables_is_found_with_what_it_lacks(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    name = f"guest_{uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url().replace("+psycopg", ""), autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'guest'")
        owner.execute(f"CREATE SCHEMA {name}_s")
        owner.execute(f"GRANT USAGE ON SCHEMA {name}_s TO {name}")
        url = postgres_server.url(password="guest").replace("//ablate:", f"//{name}:")
        url += f"?options=-csearch_path%3D{name}_s"
        good, seen = findings(runs_dir=tmp_path, storage=url)["ledger"]
        assert not good
        assert "GRANT CREATE ON SCHEMA" in seen
        assert "LINE" not in seen
        owner.execute(f"GRANT CREATE ON SCHEMA {name}_s TO {name}")
        good, seen = findings(runs_dir=tmp_path, storage=url)["ledger"]
        assert good, seen
        assert owner.execute(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{name}_s'").fetchone() == (0,)
        owner.execute(f"DROP OWNED BY {name} CASCADE")
        owner.execute(f"DROP SCHEMA {name}_s")
        owner.execute(f"DROP ROLE {name}")


def test_the_doctor_looks_again_with_growing_pauses_until_the_last_moment() -> None:
    now, slept, told = [100.0], [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    bad = [Examination(what="ledger", good=False, seen="no")]
    found = look_until(
        lambda: bad, is_sound, lambda _, pause: told.append(pause), seconds=100.0, clock=lambda: now[0], sleep=sleep
    )
    assert found == bad
    assert slept == told == [5, 10, 20, 40, 25], "the last look is when the time is over"


def test_the_doctor_ends_as_soon_as_nothing_that_is_needed_is_at_fault() -> None:
    looks = iter([False, False, True])
    slept: list[float] = []

    def look() -> list[Examination]:
        tracking = Examination(what="tracking", good=False, seen="away", needed=False)
        return [tracking, Examination(what="ledger", good=next(looks), seen="")]

    found = look_until(look, is_sound, lambda *_: None, seconds=600.0, sleep=slept.append)
    assert [each.good for each in found] == [False, True]
    assert slept == [5, 10]
