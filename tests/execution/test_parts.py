"""The parts of execution that need no Ray running: what fits on which nodes, signals, data kept in memory."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from ablate.base.errors import ClusterLostError, ResourceError
from ablate.core.trial import TrialKey
from ablate.execution import cluster, gcs_watchdog
from ablate.execution.cluster import SlotPlan, plan, ray_session, wait_for_nodes
from ablate.execution.own_ray import environment
from ablate.execution.packing import Packing
from ablate.execution.signals import Interruption
from ablate.execution.tune_session import StopTune, TuneSession

LAPTOP = [{"CPU": 2.0}]
ONE_BOX = [{"CPU": 64.0, "GPU": 8.0}]
TWO_BOXES = [{"CPU": 32.0, "GPU": 4.0}] * 2
UNEVEN = [{}, {"CPU": 16.0, "GPU": 3.0}, {"CPU": 16.0, "GPU": 1.0}]


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_trial", "cpus", "slots"),
    [
        (LAPTOP, 0, 1.0, None, 2),
        (LAPTOP, 0, 1.0, 0.5, 4),
        (LAPTOP, 0, 1.0, 2, 1),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 0, 1.0, 2, 2),
        (ONE_BOX, 8, 1.0, None, 8),
        (ONE_BOX, 8, 0.5, None, 16),
        (ONE_BOX, 8, 0.4, None, 16),
        (ONE_BOX, 8, 0.1, None, 80),
        (ONE_BOX, 2, 0.5, None, 4),
        (ONE_BOX, 8, 1.0, 16, 4),
        (ONE_BOX, 7, 2.0, None, 3),
        (TWO_BOXES, 8, 0.5, None, 16),
        (TWO_BOXES, 5, 1.0, None, 5),
        (UNEVEN, 4, 2.0, None, 1),
        (UNEVEN, 4, 1.0, None, 4),
    ],
)
def test_trials_at_a_time(
    nodes: list[dict[str, float]], gpus: int, per_trial: float, cpus: float | None, slots: int
) -> None:
    assert plan(nodes, gpus=gpus, gpus_per_trial=per_trial, cpus_per_trial=cpus).slots == slots


def test_scarce_cpus_are_shared_so_that_no_gpu_stays_idle() -> None:
    held = plan([{"CPU": 2.0, "GPU": 8.0}], gpus=8, gpus_per_trial=0.5, cpus_per_trial=None)
    assert (held.slots, held.cpus, held.threads) == (16, 0.12, 1)
    assert plan(ONE_BOX, gpus=8, gpus_per_trial=0.5, cpus_per_trial=None).cpus == 1.0


def test_threads_are_the_whole_cpus_of_a_trial() -> None:
    assert plan(ONE_BOX, gpus=0, gpus_per_trial=1, cpus_per_trial=4).threads == 4
    assert plan(ONE_BOX, gpus=0, gpus_per_trial=1, cpus_per_trial=1.5).threads == 1


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_trial", "cpus", "message"),
    [
        (
            LAPTOP,
            8,
            0.5,
            None,
            "--gpus 8: the cluster has 0 GPUs and 2 CPUs on 1 node. Type --gpus 0 to train on CPUs.",
        ),
        (TWO_BOXES, 9, 1.0, None, "8 GPUs and 64 CPUs on 2 nodes. Type --gpus 8 to use those, or --gpus 0"),
        (TWO_BOXES, 8, 8.0, None, "no trial can hold so many on one node within --gpus 8. Type --gpus-per-trial 4."),
        (ONE_BOX, 2, 4.0, None, "no trial can hold so many on one node within --gpus 2. Type --gpus-per-trial 2."),
        (ONE_BOX, 8, 1.5, None, "--gpus-per-trial 1.5: a trial gets part of one GPU (0.25, 0.5) or a whole number"),
        (ONE_BOX, 8, 0.0, None, "--gpus-per-trial 0: a trial gets part of one GPU"),
        (LAPTOP, 0, 1.0, 4, "--cpus-per-trial 4: the cluster has 0 GPUs and 2 CPUs on 1 node, and no node holds one"),
        ([{"CPU": 2.0}] * 2, 0, 1.0, 3, "no node holds one trial. Type --cpus-per-trial 2."),
    ],
)
def test_impossible_requests_say_what_there_is_and_what_to_type(
    nodes: list[dict[str, float]], gpus: int, per_trial: float, cpus: float | None, message: str
) -> None:
    with pytest.raises(ResourceError, match=re.escape(message)):
        plan(nodes, gpus=gpus, gpus_per_trial=per_trial, cpus_per_trial=cpus)


class Joining:
    """Nodes that join one at a look."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.nodes = nodes
        self.looks = 0

    def plan(self, gpus: int, per_trial: float = 1.0) -> SlotPlan:
        self.looks += 1
        return plan(self.nodes[: self.looks], gpus=gpus, gpus_per_trial=per_trial, cpus_per_trial=None)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves; the list of sleeps."""
    sleeps: list[float] = []
    monkeypatch.setattr(cluster, "time", Mock(monotonic=lambda: sum(sleeps), sleep=sleeps.append))
    return sleeps


def test_nodes_that_join_late_are_waited_for(slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
    joining = Joining({}, {"CPU": 32.0, "GPU": 4.0}, {"CPU": 32.0, "GPU": 4.0}, {"CPU": 32.0, "GPU": 4.0})
    checks: list[None] = []
    assert wait_for_nodes(lambda: joining.plan(8), seconds=60, check=lambda: checks.append(None)).slots == 8
    assert (joining.looks, len(slept), len(checks)) == (3, 2, 3)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("--gpus 8: the cluster has 0 GPUs and 0 CPUs on 1 node.")
    assert said.endswith("Waiting up to 60 s for more nodes to join.")


def test_waiting_ends_with_what_there_is_and_never_begins_for_what_no_node_can_mend(slept: list[float]) -> None:
    with pytest.raises(ResourceError, match="--gpus 8: the cluster has 4 GPUs"):
        wait_for_nodes(lambda: Joining(ONE_BOX[0] | {"GPU": 4.0}).plan(8), seconds=2.5, check=lambda: None)
    assert sum(slept) == 2.5
    slept.clear()
    with pytest.raises(ResourceError, match=r"--gpus-per-trial 1\.5"):
        wait_for_nodes(lambda: Joining(*ONE_BOX).plan(8, 1.5), seconds=60, check=lambda: None)
    with pytest.raises(ResourceError, match="--gpus 9"):
        wait_for_nodes(lambda: Joining(*ONE_BOX).plan(9), seconds=0, check=lambda: None)
    with pytest.raises(InterruptedError):
        wait_for_nodes(lambda: Joining({}).plan(8), seconds=60, check=Mock(side_effect=[None, InterruptedError]))
    assert slept == [1.0]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "the Ray Client is not supported. Give HOST:6379"),
        ("head", "--address head: not of the form HOST:PORT, and not 'auto'."),
        ("no.such.host.invalid:6379", "nothing answers at no.such.host.invalid:6379"),
        ("auto", "--address auto: nothing answers at "),
    ],
)
def test_an_address_where_no_cluster_is_is_refused_at_once(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ResourceError, match=re.escape(message)), ray_session(address):
            pass


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_SET", "before")
    monkeypatch.delenv("ABLATE_UNSET", raising=False)
    with environment(ABLATE_SET="inside", ABLATE_UNSET="inside"):
        assert (os.environ["ABLATE_SET"], os.environ["ABLATE_UNSET"]) == ("inside", "inside")
    assert os.environ["ABLATE_SET"] == "before"
    assert "ABLATE_UNSET" not in os.environ


def test_a_signal_waits_for_the_end_of_a_commit() -> None:
    committed = False
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        committed = True
        with pytest.raises(KeyboardInterrupt, match=r"SIGTERM|15"):
            interruption.check()
    assert committed


def test_the_end_of_the_grace_and_a_second_signal_break_into_training() -> None:
    reached: list[str] = []

    def train(interruption: Interruption, *, again: bool) -> None:
        with interruption.breakable():
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.arrived
            assert not interruption.overdue
            reached.append("a step that may pause")
            if again:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                signal.pause()  # until the alarm
            reached.append("too far")

    for grace, again in ((0.05, False), (60.0, True)):
        with Interruption(grace) as interruption, pytest.raises(KeyboardInterrupt, match=r"SIGTERM|15"):
            train(interruption, again=again)
    assert reached == ["a step that may pause"] * 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_without_grace_a_signal_breaks_into_training_at_once() -> None:
    reached: list[str] = []

    def train(interruption: Interruption) -> None:
        with interruption.breakable():
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("the next line")

    with Interruption() as interruption, pytest.raises(KeyboardInterrupt, match=r"SIGTERM|15"):
        train(interruption)
    assert reached == []


def test_an_ignored_signal_stays_ignored() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGINT)
            interruption.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


def test_the_trials_of_a_lost_node_go_before_new_ones_and_no_more_than_fit_on_those_that_are_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search, fits = Mock(), 2
    waiting = [TrialKey(study="s", dataset="d", number=number) for number in range(3)]
    search.next_pack = lambda most: (Mock(key=waiting.pop(0)),) if waiting else ()
    search.fail = lambda key, message, kind: waiting.insert(0, key)
    session = TuneSession(
        search=search,
        packing=Packing(search=search, member=lambda config: Mock(config=config)),
        assign=lambda pack: Mock(keys=list(pack.members)),
        on_event=lambda: None,
        interruption=Mock(),
        slots=lambda: fits,
        answers=lambda: True,
        own=False,
    )

    def handed_out(trial_id: str) -> int | None:
        assignment = session.suggest(trial_id)
        return None if assignment is None else assignment.keys[0].number

    assert [handed_out(name) for name in ("first", "second", "third")] == [0, 1, None]
    fits = 1
    session.died("first", "its node is gone")
    session.ended("first")
    assert "the cluster has changed" not in caplog.text
    assert handed_out("third") is None
    assert "the cluster has changed: 1 at a time, not 2" in caplog.text
    session.ended("second")
    assert [handed_out(name) for name in ("third", "fourth")] == [0, None]
    fits = 0
    session.died("third", "its node is gone as well")
    session.ended("third")
    assert handed_out("fourth") == 0, "it waits where there is no node at all"
    session.ended("fourth")
    assert handed_out("fifth") == 2
    session.ended("fifth")
    with pytest.raises(StopTune, match=r"^$"):
        session.suggest("sixth")


def test_a_head_that_falls_silent_ends_the_driver_also_where_its_main_thread_waits_for_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("KNOCK_SECONDS", 0.01), ("LOST_SECONDS", 0.3), ("LEAVE_SECONDS", 0.6)):
        monkeypatch.setattr(gcs_watchdog, name, seconds)
    left: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        line = gcs_watchdog.GcsWatchdog(address, leave=left.append)
        watching = threading.Thread(target=line.watch)
        watching.start()
        time.sleep(0.7)
        assert line.answers() in (True, False), "it raises where it is lost"
    watching.join(10)
    assert left == [75]
    assert re.fullmatch(rf"ablate: the Ray cluster at {address} has not answered .* same command again .*\n",
                        capsys.readouterr().err)  # fmt: skip
    with pytest.raises(ClusterLostError, match="what was committed is kept"):
        line.answers()
