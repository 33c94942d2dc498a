"""How many trials a pack has: the least number near the best throughput that memory allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ablate.core.trial import TrialConfig
from ablate.engine.models.settings import ModelConfig
from ablate.engine.training import pack_size
from ablate.engine.training.pack_size import choose, measure_pack
from ablate.engine.training.rows import ReplicaGroup
from ablate.engine.training.transformer import Transformer
from support.entries import entry
from support.small_training import trial
from support.text_cases import trial as text_trial

DIGITS = replace(trial(), task=entry(task="digits", patch=(2, 4)))
RATES: dict[str, tuple[dict[int, float | None], int, int]] = {
    "one": ({1: 10.0}, 1, 1),
    "linear": ({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, 8, 8),
    "no power of two": ({1: 1.0, 2: 2.0, 4: 4.0, 6: 6.0}, 6, 6),
    "saturates": ({1: 1.0, 2: 1.9, 4: 1.99, 8: 2.0, 16: 1.98}, 16, 2),
    "falls": ({1: 1.0, 2: 2.0, 4: 1.5}, 64, 2),
    "dips a little": ({1: 2.0, 2: 1.95, 4: 4.0}, 4, 4),
    "memory": ({1: 1.0, 2: 2.0, 4: None}, 64, 2),
    "no memory at all": ({1: None}, 64, 1),
}


@pytest.mark.parametrize("case", RATES)
def test_the_least_number_near_the_best_is_chosen(case: str) -> None:
    rates, most, expected = RATES[case]
    assert choose(lambda count: rates[count], most) == expected


def rows_tried(monkeypatch: pytest.MonkeyPatch, config: TrialConfig, most: int) -> tuple[int, list[int]]:
    """Return the number that is measured, and the rows of the groups that were stepped."""
    rows: list[int] = []
    step = ReplicaGroup.step

    def noted(group: ReplicaGroup, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows.append(group.rows)
        return step(group, x, targets)

    monkeypatch.setattr(ReplicaGroup, "step", noted)
    found = measure_pack(config, data_dir=None, device="cpu", most=most)
    return found, list(dict.fromkeys(rows))


def faster(rate: Callable[[int], float]) -> Callable[[pack_size.PackBench, torch.Tensor, torch.Tensor], float]:
    """Return a replacement for the timing: a step of R rows takes R / rate(R) seconds."""
    step = pack_size.PackBench._fastest

    def fastest(bench: pack_size.PackBench, x: torch.Tensor, targets: torch.Tensor) -> float:
        step(bench, x, targets)
        return bench.common.group.rows / rate(bench.common.group.rows)

    return fastest


@pytest.mark.parametrize(
    "config", [DIGITS, text_trial("build_texts"), trial(seeds=(1, 2, 3))], ids=["digits", "texts", "own"]
)
def test_a_pack_is_measured_by_steps_of_more_and_more_trials(
    config: TrialConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_size.PackBench, "_fastest", faster(lambda rows: min(rows, 4 * len(config.seeds))))
    state = torch.get_rng_state(), torch.get_num_threads()
    found, rows = rows_tried(monkeypatch, config, most=11)
    assert found == 4
    assert rows == [count * len(config.seeds) for count in (1, 2, 4, 8, 11)]
    assert torch.equal(torch.get_rng_state(), state[0])
    assert torch.get_num_threads() == state[1]


def test_memory_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_size.PackBench, "_fastest", faster(float))
    bench = pack_size.PackBench.of(DIGITS, data_dir=None, device="cpu")
    needed = bench.step_bytes()
    monkeypatch.setattr(pack_size, "_free_bytes", lambda: 5 * needed)
    assert rows_tried(monkeypatch, DIGITS, most=64) == (4, [2, 4, 8])
    wide = replace(DIGITS, settings=trial(model=ModelConfig(width=64, depth=4, mlp=64)).settings)
    assert rows_tried(monkeypatch, wide, most=64) == (1, [])


def test_a_device_out_of_memory_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = faster(float)

    def fastest(bench: pack_size.PackBench, x: torch.Tensor, targets: torch.Tensor) -> float:
        if bench.common.group.rows > 4:
            raise torch.OutOfMemoryError
        return clock(bench, x, targets)

    monkeypatch.setattr(pack_size.PackBench, "_fastest", fastest)
    assert measure_pack(DIGITS, data_dir=None, device="cpu", most=64) == 2


def test_what_is_counted_is_at_least_what_a_step_takes() -> None:
    """Autograd's tensors of the forward pass, by a second count: the sum over its operations of one layer."""
    bench = pack_size.PackBench.of(DIGITS, data_dir=None, device="cpu")
    tokens = 2 * 16 * 8 * 8 * 4  # rows, batch, tokens, width, bytes
    assert bench.step_bytes() > 10 * tokens
    doubled = replace(DIGITS, seeds=(1, 2, 3, 4))
    assert pack_size.PackBench.of(doubled, data_dir=None, device="cpu").step_bytes() == pytest.approx(
        2 * bench.step_bytes(), rel=0.05
    )


def test_one_trial_at_most_is_not_measured() -> None:
    assert Transformer().measure_pack(DIGITS, data_dir=None, device="nowhere", most=1) == 1
    assert Transformer().measure_pack(DIGITS, data_dir=None, device="cpu", most=2) in (1, 2)
