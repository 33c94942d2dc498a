"""The real search with a witness: what executors ask of it goes into the trace of the fake trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ablate.base.errors import FailureKind
from ablate.core.trial import Decision, Report, TrialConfig, TrialKey
from ablate.ledger import Ledger, TrialRecord
from ablate.study import parse_study
from ablate.tuning import SchedulerRequest, Search
from ablate.tuning.stopping.schedulers import Unscheduled
from support import fakes
from support.ledgers import SHAPE, SIZE

STUDY = """\
study: faked
datasets: {%(datasets)s}
model: {width: 8, depth: 1, mlp: none}
training: {epochs: %(epochs)d, learning_rate: {float: [1.0e-4, 1.0e-1], log: true}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: random}
scheduler: {name: "support.witness:Stopper", options: {stops: %(stops)s}}
budget: {trials: %(trials)d}
"""


class WatchedSearch(Search):
    """The real search; what executors ask of it goes into the trace once it is committed."""

    home: Path

    def next_trial(self) -> TrialConfig | None:
        config = super().next_trial()
        if config is not None:
            fakes.note(self.home, "start", config.key)
        return config

    def report(self, key: TrialKey, report: Report) -> Decision:
        decision = super().report(key, report)
        fakes.note(self.home, "commit", key, epoch=report.epoch, loss=report.mean("val_loss"))
        return decision

    def fail(self, key: TrialKey, message: str, *, kind: FailureKind = "trial", detail: str = "") -> None:
        super().fail(key, message, kind=kind, detail=detail)
        fakes.note(self.home, "fail", key, message=message, kind=kind)


@contextmanager
def searching(
    home: Path,
    trials: int,
    *,
    epochs: int = 3,
    stops: Sequence[tuple[int, int]] = (),
    confirm: int = 0,
    datasets: Sequence[str] = ("digits",),
) -> Iterator[WatchedSearch]:
    """Hold a study of so many trials in `home/ledger.sqlite`.

    `stops` are the (trial, epoch) at which the scheduler stops; the front gets `confirm` fresh seeds.
    """
    sets = ", ".join(f"{name}: {{task: digits, patch: 4}}" for name in datasets)
    text = STUDY % {"datasets": sets, "epochs": epochs, "trials": trials, "stops": [list(stop) for stop in stops]}
    study = parse_study(text + (f"confirm: {{replicates: {confirm}}}\n" if confirm else "confirm: null\n"))
    with (
        Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger,
        ledger.acquire(
            study.name, file_text=text, fingerprint=study.fingerprint(), seed=study.seed, holder="test"
        ) as writer,
    ):
        search = WatchedSearch(
            study,
            writer,
            ledger,
            measure=lambda settings, facts: [SIZE] * len(settings),
            facts_of=lambda dataset: SHAPE,
        )
        search.home = home
        yield search


def recorded(home: Path) -> list[TrialRecord]:
    """Return the trials in the ledger of `home`, in order of number."""
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        return ledger.trials("faked")


class Stopper(Unscheduled):
    """A scheduler that stops the trials that its options name."""

    def __init__(self, request: SchedulerRequest) -> None:
        self.stops = {tuple(stop) for stop in request.options["stops"]}

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        return Decision.STOP if (number, epoch) in self.stops else Decision.CONTINUE
