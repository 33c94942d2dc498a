"""Between two events of Ray Tune: a lost study is left, a signal pauses, and nobody waits longer than the grace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from ray.exceptions import RaySystemError
from ray.tune.experiment import Trial

from ablate.base.errors import ClusterLostError, ResourceError, StaleDriverError
from ablate.core.trial import Decision, Report
from ablate.driver.options import RunOptions
from ablate.driver.run import check_resources, make_executor
from ablate.execution import RayExecutor, ray_tune, tune_session
from ablate.execution.autoscaling import NodeRequest
from ablate.execution.cluster import JOIN_SECONDS, SlotPlan
from ablate.execution.executor import Paused, Turn
from ablate.execution.packing import Packing
from ablate.execution.signals import Interruption
from ablate.execution.tune_session import TuneSession


class Stage:
    """A session with one trial that runs and one that waits for its actor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr(tune_session, "request_pause", self.asked.append)
        self.search, self.answers = Mock(), Mock()
        self.interruption = Interruption(grace_seconds=20.0)
        self.clock = 100.0
        monkeypatch.setattr("ablate.execution.signals.time.monotonic", lambda: self.clock)
        self.session = TuneSession(
            search=self.search,
            packing=Packing(search=self.search, member=lambda config: Mock(config=config)),
            assign=Mock(),
            on_event=lambda: None,
            interruption=self.interruption,
            slots=lambda: 2,
            answers=self.answers,
            own=False,
        )
        self.statuses = {"runs": Trial.RUNNING, "waits": Trial.PENDING}
        for name in self.statuses:
            self.search.next_pack.return_value = (Mock(key=name),)
            self.session.suggest(name)

    def turn(self) -> None:
        trials = [Mock(trial_id=name, status=status) for name, status in self.statuses.items()]
        self.session.turn(Mock(get_trials=lambda: trials))

    def paused(self) -> list[str]:
        return [call.args[0] for call in self.search.pause.call_args_list]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage(monkeypatch)
    with made.interruption:
        yield made


def test_while_trials_pause_a_pack_continues_until_each_of_its_trials_has_written_a_checkpoint(stage: Stage) -> None:
    stage.session.running["runs"].members["late"] = Mock(config=Mock(key="late"))
    stage.search.report.return_value = Decision.CONTINUE
    signal.raise_signal(signal.SIGTERM)
    stage.turn()
    trial = Mock(trial_id="runs")
    report = Mock(spec=Report, final=False)
    assert stage.session.take(trial, Turn(outcomes={"runs": report})), "the other one has trained and written nothing"
    trial.temporary_state.ray_actor.change.remote.assert_called_once_with(("runs",), ())
    assert stage.paused() == ["runs"]
    assert not stage.session.take(trial, Turn(outcomes={"late": Paused()}))
    assert stage.paused() == ["runs", "late"]


def test_a_free_place_is_filled_without_a_question_to_a_cluster_that_does_not_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(stage.session, "slots", lambda: asked.append(1) or 2)
    stage.answers.return_value = False
    stage.session.packing.most = 3
    stage.search.most_at_once.return_value = 9
    stage.search.next_pack.return_value = (Mock(key="joins"),)
    stage.search.report.return_value = Decision.CONTINUE
    trial = Mock(trial_id="runs")
    assert stage.session.take(trial, Turn(outcomes={"runs": Mock(spec=Report, final=False)}))
    assert "joins" in stage.session.running["runs"].members
    assert asked == []


def test_a_signal_asks_once_and_waits_for_trials_that_run(stage: Stage) -> None:
    stage.turn()
    assert stage.asked == []
    signal.raise_signal(signal.SIGTERM)
    stage.clock += 19.0
    stage.turn()
    stage.turn()
    assert len(stage.asked) == 1
    assert stage.paused() == []
    assert stage.session.suggest("another") is None
    stage.session.ended("runs")
    with pytest.raises(KeyboardInterrupt) as left:
        stage.turn()
    assert left.value.args == (signal.SIGTERM,)
    assert stage.paused() == ["waits"], "it has nothing to write"


def test_the_end_of_the_grace_is_not_waited_past_for_a_trial_that_does_not_pause(stage: Stage) -> None:
    signal.raise_signal(signal.SIGTERM)
    stage.turn()
    stage.clock += 20.5
    with pytest.raises(KeyboardInterrupt):
        stage.turn()
    assert stage.paused() == ["waits"], "the other one has written nothing: it is resumed as one that was killed"


def test_a_second_signal_ends_the_grace(stage: Stage) -> None:
    signal.raise_signal(signal.SIGINT)
    stage.turn()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stage.turn()


@pytest.mark.parametrize(
    ("part", "error"), [("search", StaleDriverError("another driver")), ("answers", ClusterLostError("no answer"))]
)
def test_a_study_or_a_cluster_that_was_lost_is_left_between_two_reports(
    stage: Stage, part: str, error: Exception
) -> None:
    (stage.search.check if part == "search" else stage.answers).side_effect = error
    with pytest.raises(type(error)):
        stage.turn()


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_the_grace_that_was_asked_for_reaches_the_executor(executor: str, tmp_path: Path) -> None:
    settings = RunOptions(runs_dir=tmp_path, executor=executor, device="cpu", grace_seconds=3.5)
    made: Any = make_executor(settings, tmp_path, tmp_path)
    assert made.grace_seconds == 3.5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "cuda"}, "--device cuda: there is no GPU here"),
        ({"address": "head:6379"}, "--address head:6379: --executor local trains one trial at a time"),
        ({"gpus": 4}, "--gpus 4: --executor local trains one trial at a time"),
    ],
)
def test_what_this_process_cannot_give_is_refused_before_a_trial_is_spent_on_it(
    asked: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ResourceError, match=said):
        check_resources(RunOptions(runs_dir=tmp_path, executor="local", **asked))


@pytest.mark.parametrize(
    ("installed", "asked", "used"),
    [
        (True, {}, 3),
        (True, {"gpus": 1}, 1),
        (True, {"device": "cpu"}, 0),
        (False, {}, 0),
        (False, {"gpus": 2}, 2),
    ],
)
def test_a_search_uses_the_gpus_that_torch_can_use_or_those_that_were_asked_for(
    installed: bool, asked: dict[str, Any], used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        assert name == "libcuda.so.1"
        if not installed:
            raise OSError(name)

    monkeypatch.setattr("ablate.driver.executors.ctypes.CDLL", load)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    made: Any = make_executor(RunOptions(runs_dir=tmp_path, executor="ray", **asked), tmp_path, tmp_path)
    assert made.gpus == used


@pytest.mark.parametrize(("address", "seconds"), [("head:6379", JOIN_SECONDS), (None, 0.0)])
def test_only_a_cluster_elsewhere_is_waited_for(
    address: str | None, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait_for_nodes(make: object, *, seconds: float, check: object) -> None:
        waits.append(seconds)
        raise StopIteration

    @contextmanager
    def gcs_watchdog(_: str, *, ended: object) -> Iterator[Mock]:
        yield Mock()

    @contextmanager
    def ray_session(_: str | None, *, check: object) -> Iterator[Mock]:
        yield Mock()

    fakes = {
        "wait_for_nodes": wait_for_nodes,
        "gcs_watchdog": gcs_watchdog,
        "ray_session": ray_session,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(ray_tune, name, fake)
    with pytest.raises(StopIteration):
        RayExecutor(home=tmp_path, address=address).run(MagicMock(), on_event=lambda: None)
    assert waits == [seconds]


def test_nodes_are_asked_for_as_trials_are_left_and_for_none_in_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, float]]] = []
    monkeypatch.setattr("ablate.execution.autoscaling.request_resources", lambda bundles: asked.append(bundles))
    session = stage.session
    session.request = NodeRequest(most=3, bundle=SlotPlan(slots=3, cpus=1.0, gpus=0.4).bundle)
    for left in (9, 3, 2):
        stage.search.most_at_once.return_value = left
        session.died("runs", "to count again")
        session.turn(Mock(get_trials=list))
    session.release()
    assert asked == [[{"CPU": 1.0, "GPU": 0.5}] * count for count in (3, 3, 2, 0)]


def test_a_request_that_a_cluster_does_not_take_back_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request_resources = Mock(side_effect=RaySystemError("no answer"))
    monkeypatch.setattr("ablate.execution.autoscaling.request_resources", request_resources)
    NodeRequest(most=3, bundle={"CPU": 1.0}).drop()
    assert "it cannot be dropped" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--autoscale 2: a Ray that ablate starts has no autoscaler"),
        ({"executor": "local"}, "--autoscale 2: --executor"),
    ],
)
def test_only_a_cluster_elsewhere_grows(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=said):
        check_resources(RunOptions(runs_dir=tmp_path, device="cpu", autoscale=2, **options))
