"""How many trials a cluster that grows holds, and how many a study could use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import ResourceError
from ablate.execution import autoscaling
from ablate.execution.autoscaling import NodeRequest
from ablate.execution.cluster import SlotPlan, most_slots, plan
from support import fakes, witness

HEAD = {"memory": 1.0}
GPU_NODE = {"CPU": 8.0, "GPU": 2.0}


def test_a_study_that_grows_starts_with_the_gpus_that_are_there() -> None:
    request: dict[str, Any] = {"gpus": 8, "gpus_per_trial": 0.5, "cpus_per_trial": None}
    with pytest.raises(ResourceError, match="--gpus 8: the cluster has 2 GPUs"):
        plan([HEAD, GPU_NODE], **request)
    held = plan([HEAD, GPU_NODE], **request, grows=True)
    assert held.slots == 4
    assert most_slots([HEAD, GPU_NODE], held, gpus=8, most_nodes=4) == 16
    with pytest.raises(ResourceError, match="--gpus 8: the cluster has 0 GPUs"):
        plan([HEAD], **request, grows=True)


@pytest.mark.parametrize(
    ("gpus", "share", "cpus", "most_nodes", "slots"),
    [(8, 0.4, None, 4, 16), (8, 2.0, None, 4, 4), (8, 1.0, 8.0, 4, 4), (3, 1.0, None, 4, 3), (0, 1.0, 3.0, 5, 10)],
)
def test_the_most_is_what_as_many_nodes_hold(
    gpus: int, share: float, cpus: float | None, most_nodes: int, slots: int
) -> None:
    held = plan([GPU_NODE], gpus=gpus, gpus_per_trial=share, cpus_per_trial=cpus, grows=True)
    assert most_slots([HEAD, GPU_NODE], held, gpus=gpus, most_nodes=most_nodes) == slots
    full = plan([GPU_NODE] * most_nodes, gpus=gpus, gpus_per_trial=share, cpus_per_trial=cpus)
    assert full.slots == slots


@pytest.mark.parametrize(("share", "of_gpu"), [(0.4, 0.5), (0.5, 0.5), (0.3, 1 / 3), (1.0, 1.0), (2.0, 2.0)])
def test_a_share_is_asked_for_as_it_is_placed(share: float, of_gpu: float) -> None:
    assert SlotPlan(slots=1, cpus=1.0, gpus=share).bundle == {"CPU": 1.0, "GPU": pytest.approx(of_gpu)}


@pytest.mark.parametrize(
    ("cpus", "share", "trials", "asked"),
    [
        (1.0, 0.4, 5, [{"CPU": 1, "GPU": 1}] * 3),  # two share a GPU
        (3.0, 1 / 3, 3, [{"CPU": 3, "GPU": 1}]),
        (2.0, 1.0, 3, [{"CPU": 2, "GPU": 1}] * 3),
        (0.5, 0.0, 3, [{"CPU": 1}] * 2),
        (1.5, 0.0, 2, [{"CPU": 2}] * 2),
        (2.0, 0.5, 0, []),
    ],
)
def test_a_ray_that_takes_whole_numbers_only_is_asked_for_as_many_places(
    cpus: float, share: float, trials: int, asked: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[dict[str, int]]] = []

    def request(bundles: list[dict[str, int]]) -> None:
        if not all(isinstance(value, int) for bundle in bundles for value in bundle.values()):
            raise TypeError("each bundle key should be str and value as int.")
        heard.append(bundles)

    monkeypatch.setattr(autoscaling, "request_resources", request)
    NodeRequest(most=9, bundle=SlotPlan(slots=1, cpus=cpus, gpus=share).bundle).ask(trials)
    assert heard == [asked]


def test_no_gpu_is_asked_for_without_one() -> None:
    assert SlotPlan(slots=1, cpus=2.0, gpus=0.0).bundle == {"CPU": 2.0}


def test_a_search_could_use_a_place_for_each_trial_that_has_not_ended(tmp_path: Path) -> None:
    with witness.searching(tmp_path, 3, epochs=1) as search:
        counts = [search.most_at_once()]
        while (trial := search.next_trial()) is not None:
            counts.append(search.most_at_once())
            search.report(trial.key, fakes.report(trial, 1))
            counts.append(search.most_at_once())
    assert counts == [3, 3, 2, 2, 1, 1, 0]


def test_a_search_that_was_stopped_uses_the_places_of_what_runs(tmp_path: Path) -> None:
    with witness.searching(tmp_path, 3, epochs=1) as search:
        search.next_trial()
        search.stop()
        assert search.most_at_once() == 1
