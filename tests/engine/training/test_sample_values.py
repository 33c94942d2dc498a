"""What is kept of each test sample: values whose mean is the metric, beside the checkpoint, in any ending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate.base.files import open_folder
from ablate.base.sample_files import SampleValues, read_sample_values, write_sample_values
from ablate.core.trial import Report, TrialConfig
from ablate.engine.training import train
from ablate.engine.training.evaluate import Means, SampleMeans
from support.small_training import TEST_SAMPLES, stripes, trial


def kept(place: Path, attempt: int = 1) -> SampleValues:
    found = read_sample_values(open_folder(place), attempt)
    assert found is not None
    return found


def agree(found: SampleValues, report: Report) -> bool:
    """Return whether the means over samples are the metrics of the report."""
    return all(
        np.allclose(values.mean(axis=1, dtype=np.float64), [metrics[name] for metrics in report.metrics], rtol=1e-6)
        for name, values in found.values.items()
    )


def confirming(**changes: object) -> TrialConfig:
    return trial(stage="confirm", source=0, **changes)


def test_a_confirmation_keeps_one_value_per_sample_also_when_it_is_resumed(tmp_path: Path) -> None:
    config = confirming()
    *_, last = train(config, checkpoints=tmp_path / "whole")
    whole = kept(tmp_path / "whole")
    assert set(whole.values) == {"test_loss", "test_accuracy"}
    assert whole.values["test_accuracy"].shape == (len(config.seeds), TEST_SAMPLES)
    assert agree(whole, last)
    assert set(np.unique(whole.values["test_accuracy"])) <= {0.0, 1.0}

    list(islice(train(config, checkpoints=tmp_path / "again"), 2))
    assert read_sample_values(open_folder(tmp_path / "again"), 1) is None
    *_, again = train(config, checkpoints=tmp_path / "again", attempt=2)
    assert again.metrics == last.metrics
    found = kept(tmp_path / "again", 2)
    assert found.split == whole.split
    assert all((found.values[name] == whole.values[name]).all() for name in whole.values)
    *_, offered = train(config, checkpoints=tmp_path / "again", attempt=3)  # its report was lost on the way
    assert agree(kept(tmp_path / "again", 3), offered)


def test_reading_a_trained_trial_keeps_them_beside_its_checkpoints(tmp_path: Path) -> None:
    config = trial()
    list(train(config, checkpoints=tmp_path))
    assert read_sample_values(open_folder(tmp_path), 1) is None
    reading = replace(config, key=replace(config.key, number=5), stage="confirm", source=0, evaluates=0)
    [report] = train(reading, checkpoints=tmp_path)
    assert agree(kept(tmp_path), report)


def test_the_digest_tells_other_samples_and_another_order(tmp_path: Path) -> None:
    data, digests = stripes(), []
    turned = replace(data, test_inputs=data.test_inputs.flip(0), test_targets=data.test_targets.flip(0))
    brighter = replace(data, test_inputs=data.test_inputs + 1)
    for name, each in (("same", data), ("order", turned), ("inputs", brighter)):
        list(train(confirming(), checkpoints=tmp_path / name, data=each))
        digests.append(kept(tmp_path / name).split)
    assert len(set(digests)) == 3


@pytest.mark.parametrize("pad", [None, -1])
def test_the_mean_over_samples_is_the_mean_over_targets(pad: int | None) -> None:
    random = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 4, (2, 6, 5), generator=random)
    if pad is not None:
        targets[:, 1:, 3:], targets[:, 4, 1:] = pad, pad  # samples of 5, 3 and 1 targets
    values = {"loss": torch.rand(2, 6, 5, generator=random) * (targets != pad)}
    means, each = Means(pad), SampleMeans(pad)
    for part in (slice(0, 4), slice(4, 6)):
        batch = {name: value[:, part] for name, value in values.items()}
        means.add(batch, targets[:, part])
        each.add(batch, targets[:, part])
    found = each.values()["loss"]
    assert found.shape == (2, 6)
    assert found.mean(axis=1) == pytest.approx(means.values()["loss"].numpy(), rel=1e-6)
    if pad is None:
        assert found == pytest.approx(values["loss"].mean(-1).numpy(), rel=1e-6)


@pytest.mark.parametrize(
    ("attempts", "asked", "read"), [((1,), 1, 1), ((1, 3), 2, 1), ((1, 2), 2, 2), ((2,), 1, None), ((), 1, None)]
)
def test_the_newest_attempt_up_to_the_asked_one_counts(
    tmp_path: Path, attempts: Sequence[int], asked: int, read: int | None
) -> None:
    folder = open_folder(tmp_path)
    for attempt in attempts:
        values = {"test_loss": np.full((1, 2), attempt, dtype=np.float32)}
        write_sample_values(folder, attempt, SampleValues(values=values, split="s"))
    found = read_sample_values(folder, asked)
    assert (None if found is None else found.values["test_loss"][0, 0]) == read


@pytest.mark.parametrize("content", [b"", b"x" * 40, b"\xff" * 8 + b"{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "samples-attempt-001.safetensors").write_bytes(content)
    assert read_sample_values(open_folder(tmp_path), 1) is None
