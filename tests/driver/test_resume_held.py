"""A study that another driver holds: refused at once where that one lives, gone on with where it has gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from ablate.base import processes
from ablate.base.errors import LedgerHeldError
from ablate.driver import resume as resumption
from ablate.ledger import Ledger, StudyWriter
from support.ledgers import Clock, raw_connection, take

LEASE = 60.0


class Elsewhere:
    """A driver on another machine, and the time that passes while somebody waits for it."""

    def __init__(self, ledger: Ledger, clock: Clock, recorded: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = ledger
        self.clock = clock
        self.recorded = recorded
        self.then: Callable[[float], object] = lambda now: None
        self.said: list[str] = []
        self.began = clock.now
        with monkeypatch.context() as patch:
            patch.setattr(processes, "this_place", lambda: "another machine")
            self.writer = take(ledger, holder="ada", lease_seconds=LEASE)

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.then(self.waited)

    def wall(self, seconds: float) -> None:
        """Let the clock that is recorded jump."""
        self.recorded.now += seconds

    @property
    def waited(self) -> float:
        return self.clock.now - self.began

    def ask(self) -> StudyWriter:
        def asked(mark: tuple[object, ...] | None) -> StudyWriter:
            return take(self.ledger, holder="bob", unrenewed=mark)

        return resumption.acquire_when_free(asked, self.said.append, monotonic=self.clock, sleep=self.sleep)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    clock, recorded = Clock(), Clock()
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=recorded, monotonic=clock) as ledger:
        yield Elsewhere(ledger, clock, recorded, monkeypatch)


def test_a_driver_elsewhere_that_renews_no_more_is_followed_once_its_lease_has_ended(elsewhere: Elsewhere) -> None:
    with elsewhere.ask() as writer:
        assert writer.term == 2
    assert LEASE <= elsewhere.waited <= LEASE + 1
    waits, ends = elsewhere.said
    assert re.search(r"held by ada .* It may be gone: waiting 60 s to see whether it renews its lease\.$", waits)
    assert ends == "It did not renew its lease: this driver continues."


@pytest.mark.parametrize("jump", [1e8, -1e8])
def test_the_clocks_of_the_machines_do_not_matter(elsewhere: Elsewhere, jump: float) -> None:
    elsewhere.then = lambda waited: elsewhere.wall(jump if waited == 30 else 0.0)
    with elsewhere.ask() as writer:
        assert writer.term == 2
    assert LEASE <= elsewhere.waited <= LEASE + 1


def test_a_driver_elsewhere_that_renews_is_alive_and_the_second_is_refused(elsewhere: Elsewhere) -> None:
    elsewhere.then = lambda waited: elsewhere.writer.renew() if waited == 20 else None
    with pytest.raises(LedgerHeldError, match="held by ada"):
        elsewhere.ask()
    assert elsewhere.waited == 20


def test_a_third_that_is_quicker_keeps_the_study(elsewhere: Elsewhere) -> None:
    elsewhere.then = lambda waited: take(elsewhere.ledger, holder="eve", takeover=True) if waited == LEASE else None
    with pytest.raises(LedgerHeldError, match="held by eve"):
        elsewhere.ask()


def test_a_lease_that_lasts_an_hour_is_not_waited_for(elsewhere: Elsewhere) -> None:
    with raw_connection(elsewhere.ledger) as raw:
        raw.execute(text("UPDATE ablate_lease SET lease_seconds = 3600"))
        raw.commit()
    with pytest.raises(LedgerHeldError, match="held by ada"):
        elsewhere.ask()
    assert elsewhere.waited == 0


def test_a_driver_that_lives_here_is_refused_at_once(tmp_path: Path) -> None:
    slept: list[float] = []
    said: list[str] = []
    with (
        Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger,
        take(ledger, holder="ada"),
        pytest.raises(LedgerHeldError, match="held by ada"),
    ):
        resumption.acquire_when_free(
            lambda mark: take(ledger, holder="bob", unrenewed=mark), said.append, sleep=slept.append
        )
    assert said == []
    assert slept == []
