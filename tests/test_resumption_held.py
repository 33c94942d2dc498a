"""A study that another driver holds: refused at once where that one lives, gone on with where it has gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from ledgers import Clock, take

from ablate import resumption
from ablate.errors import LedgerHeldError
from ablate.ledger import Hold, Ledger, lease

LEASE = 60.0


class Elsewhere:
    """A driver on another machine, and the time that passes while somebody waits for it."""

    def __init__(self, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = ledger
        self.clock = clock
        self.then: Callable[[float], object] = lambda now: None
        self.said: list[str] = []
        self.began = clock.now
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_place", lambda: "another machine")
            self.hold = take(ledger, holder="ada", lease_seconds=LEASE)
        monkeypatch.setattr(resumption, "time", Mock(time=clock, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.then(self.waited)

    @property
    def waited(self) -> float:
        return self.clock.now - self.began

    def ask(self) -> Hold:
        return resumption.when_free(partial(take, self.ledger, holder="bob"), self.said.append)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    clock = Clock()
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=clock) as ledger:
        yield Elsewhere(ledger, clock, monkeypatch)


def test_a_driver_elsewhere_that_renews_no_more_is_followed_once_its_lease_has_ended(elsewhere: Elsewhere) -> None:
    with elsewhere.ask() as hold:
        assert hold.epoch == 2
    assert LEASE <= elsewhere.waited <= LEASE + 1
    (said,) = elsewhere.said
    assert re.search(r"held by ada .* It may be gone: waiting 60 s to see whether it renews\.$", said)


def test_a_driver_elsewhere_that_renews_is_alive_and_the_second_is_refused(elsewhere: Elsewhere) -> None:
    elsewhere.then = lambda waited: elsewhere.hold.renew() if waited == 20 else None
    with pytest.raises(LedgerHeldError, match="held by ada"):
        elsewhere.ask()
    assert elsewhere.waited == 20


def test_a_third_that_is_quicker_keeps_the_study(elsewhere: Elsewhere) -> None:
    elsewhere.then = lambda waited: take(elsewhere.ledger, holder="eve") if waited == LEASE else None
    with pytest.raises(LedgerHeldError, match="held by eve"):
        elsewhere.ask()


def test_a_lease_that_ends_in_the_far_future_is_not_waited_for(elsewhere: Elsewhere) -> None:
    elsewhere.hold.lease_seconds = 3600.0
    elsewhere.hold.renew()
    with pytest.raises(LedgerHeldError, match="held by ada"):
        elsewhere.ask()
    assert elsewhere.waited <= resumption.LONGEST_WAIT + 2


def test_a_driver_that_lives_here_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "time", Mock(time=Clock(), sleep=Mock(side_effect=AssertionError("it waited"))))
    said: list[str] = []
    with (
        Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger,
        take(ledger, holder="ada"),
        pytest.raises(LedgerHeldError, match="held by ada"),
    ):
        resumption.when_free(partial(take, ledger, holder="bob"), said.append)
    assert said == []
