"""One contract for both executors, on trainers without torch."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from ablate.base.errors import ResourceError, StaleDriverError
from ablate.execution import Executor, LocalExecutor, RayExecutor, worker
from ablate.execution.cluster import QUIET
from ablate.execution.own_ray import environment
from ablate.ledger import Ledger
from support import fakes, witness
from support.processes import have_ended

GPUS = 8
pytestmark = [
    pytest.mark.services,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray 2.55 leaves /dev/null open
]
BOTH = pytest.mark.parametrize("kind", ["local", "ray"])


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for the module; it declares GPUs that do not exist, so every trial is told to use the CPU."""
    with environment(**QUIET):
        ray.init(address="local", num_cpus=2, num_gpus=GPUS, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def executor(kind: str, home: Path, **options: Any) -> Executor:
    if kind == "local":
        return LocalExecutor(home=home, device="cpu", trainer="support.fakes:train")
    return RayExecutor(home=home, device="cpu", trainer="support.fakes:train", **options)


def lines(home: Path, what: str, number: int | None = None) -> list[dict[str, Any]]:
    return [line for line in fakes.trace(home) if line["what"] == what and number in (None, line["trial"])]


def processes(home: Path) -> set[int]:
    return {line["pid"] for line in lines(home, "begin")} - {os.getpid()}


def states(home: Path) -> dict[int, str]:
    return {trial.key.number: str(trial.state) for trial in witness.recorded(home)}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[int]]]:
    """Run one study on both executors: two good trials, one that raises, one that diverges, one that is stopped."""
    runs = {}
    for kind in ("local", "ray"):
        home = tmp_path_factory.mktemp(kind)
        fakes.script(home, {1: "raise", 2: "diverge"})
        events: list[int] = []
        with witness.searching(home, 5, stops=[(3, 1)]) as search:
            executor(kind, home).run(search, on_event=lambda: events.append(len(fakes.trace(home))))  # noqa: B023
            assert search.finished
        runs[kind] = (home, events)
    return runs


@BOTH
def test_every_trial_ends_as_it_went(kind: str, told: Any) -> None:
    home, _ = told[kind]
    assert states(home) == {0: "COMPLETE", 1: "FAIL", 2: "FAIL", 3: "PRUNED", 4: "COMPLETE"}


@BOTH
def test_reports_arrive_in_order_and_unchanged(kind: str, told: Any) -> None:
    home, _ = told[kind]
    for number, epochs in {0: 3, 1: 1, 2: 1, 3: 1, 4: 3}.items():
        got = [(line["epoch"], line["loss"]) for line in lines(home, "commit", number)]
        assert got == [(epoch, fakes.loss(number, epoch)) for epoch in range(1, epochs + 1)]


@BOTH
def test_every_report_is_committed_before_the_next_epoch_begins(kind: str, told: Any) -> None:
    home, _ = told[kind]
    for number in range(5):
        order = [(x["what"], x.get("epoch")) for x in fakes.trace(home) if x["trial"] == number]
        begins = [i for i, (what, epoch) in enumerate(order) if what == "begin" and epoch > 1]
        assert all(("commit", order[i][1] - 1) in order[:i] for i in begins)


@BOTH
def test_a_stopped_trial_trains_no_further_epoch(kind: str, told: Any) -> None:
    home, _ = told[kind]
    assert [line["epoch"] for line in lines(home, "begin", 3)] == [1]


@BOTH
def test_an_exception_is_one_line_for_the_record_and_a_traceback_in_a_note(kind: str, told: Any) -> None:
    home, _ = told[kind]
    assert [line["message"] for line in lines(home, "fail", 1)] == ["ValueError: the wheels came off"]
    assert [line["message"] for line in lines(home, "fail", 2)] == ["diverged at epoch 2"]
    assert not any(line["kind"] != "trial" for line in lines(home, "fail"))
    assert witness.recorded(home)[1].error == "ValueError: the wheels came off"
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        (note,) = [
            note.payload for note in ledger.events("faked") if note.kind == "failed" and note.payload["trial"] == 1
        ]
    assert (note["epoch"], note["message"]) == (1, "ValueError: the wheels came off")
    assert "and more that fits no line" in note["detail"]
    assert "in _act" in note["detail"]


def test_what_a_worker_logs_as_a_warning_reaches_the_driver_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.script(tmp_path, {-1: "warn"})
    with witness.searching(tmp_path, 4) as search:
        executor("ray", tmp_path).run(search, on_event=lambda: None)
    assert [line for line in caplog.messages if "wheels" in line] == ["the wheels are loose"]


def test_a_worker_hands_each_warning_over_once_and_none_ends_a_trial() -> None:
    kept = worker.Warnings()
    for number in (3, "none"):
        kept.handle(logging.LogRecord("ablate", logging.WARNING, __file__, 1, "%d wheels", (number,), None))
    assert kept.taken() == {"3 wheels": "3 wheels"}
    assert kept.taken() == {}


@BOTH
def test_each_committed_change_is_announced(kind: str, told: Any) -> None:
    home, events = told[kind]
    changes = sum(len(lines(home, what)) for what in ("start", "commit", "fail"))
    assert len(events) == changes == 5 + 9 + 2


@BOTH
def test_trainers_get_the_device_and_one_thread(kind: str, told: Any) -> None:
    home, _ = told[kind]
    assert {(line["device"], line["threads"]) for line in lines(home, "begin")} == {("cpu", "1")}


def test_workers_are_reused_and_gone_afterwards(told: Any) -> None:
    home, _ = told["ray"]
    used = processes(home)
    assert 1 <= len(used) <= 2
    assert have_ended(used)


@BOTH
def test_a_driver_that_was_overtaken_ends_with_that_error_and_nothing_running(kind: str, tmp_path: Path) -> None:
    def overtake() -> None:
        with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
            study = ledger.study("faked")
            assert study is not None
            request = {"file_text": study.file_text, "fingerprint": study.fingerprint, "seed": study.seed}
            ledger.acquire("faked", **request, holder="another", takeover=True).release()

    with witness.searching(tmp_path, 3) as search, pytest.raises(StaleDriverError, match="another"):
        executor(kind, tmp_path).run(search, on_event=overtake)
    assert lines(tmp_path, "commit") == []
    assert "COMPLETE" not in states(tmp_path).values()
    assert have_ended(processes(tmp_path))


@pytest.mark.parametrize(
    ("kind", "number"), [("local", signal.SIGINT), ("local", signal.SIGTERM), ("ray", signal.SIGINT)]
)
def test_a_signal_ends_the_run_and_puts_its_trials_back(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    fakes.script(tmp_path, {-1: "sleep 0.2"})
    former = signal.getsignal(number)
    sent: list[int] = []

    def interrupt() -> None:
        if lines(tmp_path, "commit") and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    with witness.searching(tmp_path, 3, epochs=50) as search, pytest.raises(KeyboardInterrupt) as caught:
        executor(kind, tmp_path).run(search, on_event=interrupt)
    assert caught.value.args == (number,)
    assert set(states(tmp_path).values()) == {"WAITING"}
    for trial in witness.recorded(tmp_path):
        begun = [line["epoch"] for line in lines(tmp_path, "begin") if line["trial"] == trial.key.number]
        assert begun == list(range(1, trial.epochs_done + 1)), "what was begun is committed, and nothing further begun"
    assert signal.getsignal(number) is former
    assert have_ended(processes(tmp_path))


@BOTH
def test_what_an_interrupted_run_left_is_finished_by_the_next_on_either_executor(kind: str, tmp_path: Path) -> None:
    def stop() -> None:
        if lines(tmp_path, "commit", 1):
            raise KeyboardInterrupt

    with witness.searching(tmp_path, 3) as search, pytest.raises(KeyboardInterrupt):
        executor("local", tmp_path).run(search, on_event=stop)
    with witness.searching(tmp_path, 3) as search:
        executor(kind, tmp_path).run(search, on_event=lambda: None)
    assert states(tmp_path) == {0: "COMPLETE", 1: "COMPLETE", 2: "COMPLETE"}
    for number in range(3):
        assert [line["epoch"] for line in lines(tmp_path, "begin", number)] == [1, 2, 3]


@BOTH
def test_a_stopped_search_ends_the_run(kind: str, tmp_path: Path) -> None:
    with witness.searching(tmp_path, 9) as search:
        executor(kind, tmp_path).run(search, on_event=search.stop)
    assert 1 <= len(states(tmp_path)) <= 2
    assert set(states(tmp_path).values()) == {"COMPLETE"}


def test_the_confirmation_stage_waits_for_the_search_to_end_and_then_runs(tmp_path: Path) -> None:
    fakes.script(tmp_path, {0: "sleep 0.3"})
    with witness.searching(tmp_path, 2, confirm=2) as search:
        executor("ray", tmp_path).run(search, on_event=lambda: None)
        assert search.finished
    assert [trial.config.stage for trial in witness.recorded(tmp_path)] == ["search", "search", "confirm"]
    assert set(states(tmp_path).values()) == {"COMPLETE"}
    assert lines(tmp_path, "start", 2)[0]["at"] > max(lines(tmp_path, "commit", n)[-1]["at"] for n in (0, 1))


def test_a_trial_whose_process_is_killed_goes_on_from_its_checkpoint_and_one_that_kills_each_is_given_up(
    tmp_path: Path,
) -> None:
    fakes.script(tmp_path, {0: "die once", 1: "die"})
    with witness.searching(tmp_path, 4) as search:
        executor("ray", tmp_path).run(search, on_event=lambda: None)
    assert states(tmp_path) == {0: "COMPLETE", 1: "FAIL", 2: "COMPLETE", 3: "COMPLETE"}
    assert [line["epoch"] for line in lines(tmp_path, "begin", 0)] == [1, 2, 2, 3]
    assert [line["epoch"] for line in lines(tmp_path, "begin", 1)] == [1, 2, 2, 2]
    assert all(line["message"] == "its process died: its worker process has died" for line in lines(tmp_path, "fail"))


@pytest.mark.slow
def test_half_a_gpu_per_trial_on_eight_gpus_runs_sixteen_at_a_time(tmp_path: Path) -> None:
    fakes.script(tmp_path, {-1: "meet 16"})
    with witness.searching(tmp_path, 18, epochs=1) as search:
        executor("ray", tmp_path, gpus=GPUS, gpus_per_trial=0.5).run(search, on_event=lambda: None)
    assert list(states(tmp_path).values()) == ["COMPLETE"] * 18
    steps = [{"begin": 1, "end": -1}.get(line["what"], 0) for line in fakes.trace(tmp_path)]
    assert max(itertools.accumulate(steps)) == 16
    assert len(processes(tmp_path)) == 16


def test_more_gpus_than_the_cluster_has_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with (
        witness.searching(tmp_path, 1) as search,
        pytest.raises(ResourceError, match=r"--gpus 9: the cluster has 8 GPUs and 2 CPUs on 1 node\. Type --gpus 8"),
    ):
        executor("ray", tmp_path, gpus=9).run(search, on_event=lambda: None)
    assert states(tmp_path) == {}
