"""`ablate doctor` finds what a study lacks before it starts, and leaves no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres import PASSWORD, PostgresServer

from ablate.doctor import examine
from ablate.ledger import Ledger
from ablate.settings import Settings

STUDY = "study: small\ndatasets: {digits: {patch: 4}}\nmodel: {width: 8, depth: 1, mlp: none}\nbudget: {trials: 1}\n"


def findings(file: Path | None = None, **settings: object) -> dict[str, tuple[bool, str]]:
    return {each.what: (each.good, each.seen) for each in examine(Settings(**settings), file)}  # type: ignore[arg-type]


def test_a_sound_machine_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    found = findings(tmp_path / "small.yaml", runs_dir=tmp_path / "runs", store=f"file://{tmp_path}/store")
    assert all(good for good, _ in found.values()), found
    assert list(found) == ["software", "ledger", "store", "study", "devices"]
    assert "torch 2" in found["software"][1]
    assert found["study"][1] == "small: digits, all data here"
    assert not (tmp_path / "runs").exists()
    assert [p for p in (tmp_path / "store").rglob("*") if p.is_file()] == []


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
