"""Batches of every kind of data, and which samples a replicate is given."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.core.trial import TrialConfig
from ablate.engine.tasks import Data
from ablate.engine.tasks.images.patches import patch_data
from ablate.engine.tasks.images.published import Digits, read_digits
from ablate.engine.tasks.sets.anomaly_sets import AnomalySets, members
from ablate.engine.tasks.task_config import ImageConfig
from ablate.engine.training import train
from ablate.engine.training.family import family
from ablate.engine.training.order import epoch_index, keys
from ablate.engine.training.samples import Samples
from ablate.engine.training.splits import test_part as opened
from ablate.engine.training.train_config import TrainConfig
from support.sample_parts import CPU, parts, with_task
from support.small_training import stripes
from support.small_training import trial as image_trial
from support.text_cases import END, PAD, START, Recorded, pairs, translation, trial, windows
from support.trials import with_model, with_training


def of(data: Data, index: Tensor, device: torch.device = CPU) -> Samples:
    return Samples.of(data, data.train_inputs, data.train_targets, index, device=device, dtype=torch.float32)


def test_images_come_as_the_data_set_scales_them() -> None:
    data = stripes()
    index = torch.tensor([[5, 1, 9], [0, 5, 5]])
    for (x, targets), part in zip(of(data, index).batches(index, 2), torch.split(index, 2, dim=1), strict=True):
        torch.testing.assert_close(x, data.tokens(data.train_inputs[part]))
        assert torch.equal(targets, data.train_targets[part])


def test_windows_are_gathered_from_the_text_and_never_laid_out() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    inputs, targets = text[:-1].unfold(0, 50, 1), text[1:].unfold(0, 50, 1)
    data = Data(train_inputs=inputs, train_targets=targets, test_inputs=inputs, test_targets=targets, ids=True)
    index = torch.tensor([[0, 149, 3], [7, 7, 8]])
    samples = of(data, index)
    x, y = next(samples.batches(index, 3))
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x, index[..., None] + torch.arange(50))
    assert torch.equal(y, x + 1)
    for device in (CPU, torch.device("meta")):
        for held in (of(data, index, device).inputs, of(data, index, device).targets):
            assert isinstance(held, Tensor)
            assert (held.shape, held.stride(), held.device) == ((150, 50), (1, 1), device)
            assert held.untyped_storage().nbytes() <= len(text)


def test_pairs_are_shifted_and_trimmed_to_the_longest_of_all_replicates() -> None:
    source = torch.tensor([[5, 6, 7, 0, 0], [5, 0, 0, 0, 0], [8, 8, 8, 8, 8]], dtype=torch.uint8)
    target = torch.tensor([[3, END, 0, 0], [4, 5, END, 0], [3, 3, 3, END]], dtype=torch.uint8)
    data = Data(
        train_inputs=source,
        train_targets=target,
        test_inputs=source,
        test_targets=target,
        ids=True,
        pad=PAD,
        start=START,
        end=END,
    )
    index = torch.tensor([[0, 2], [1, 2]])
    first, second = of(data, index).batches(index, 1)
    (source_rbs, x_rbt), targets_rbt = first
    assert source_rbs.tolist() == [[[5, 6, 7]], [[5, 0, 0]]]
    assert x_rbt.tolist() == [[[START, 3, END]], [[START, 4, 5]]]
    assert targets_rbt.tolist() == [[[3, END, PAD]], [[4, 5, END]]]
    assert second[0][0].shape == (2, 1, 5)
    assert second[1].shape == (2, 1, 4)


def test_streamed_images_are_trained_on_as_resident_ones() -> None:
    data = stripes()
    assert isinstance(data.train_inputs, Tensor)
    assert isinstance(data.test_inputs, Tensor)
    config = image_trial(train=TrainConfig(epochs=2, batch_size=16))
    train_images, test_images = Recorded(images=data.train_inputs), Recorded(images=data.test_inputs)
    streamed = replace(data, train_inputs=train_images, test_inputs=test_images)
    expected = [r.metrics for r in train(config, data=data)]
    for got, rule in zip(train(config, data=streamed), expected, strict=True):
        assert [m["train_loss"] for m in got.metrics] == [m["train_loss"] for m in rule]
        assert [m["val_loss"] for m in got.metrics] == pytest.approx([m["val_loss"] for m in rule])
    augmented = [tuple(keys(config, "augmentation", epoch)) for epoch in (1, 2)]
    assert train_images.asked == [augmented[0], None, augmented[1], None]
    assert len({*augmented[0], *augmented[1]}) == 4
    assert keys(replace(config, seeds=(4,)), "augmentation", 1) == [augmented[0][1]]
    assert test_images.asked == []


def test_a_stream_is_closed_when_its_epoch_is_broken_off() -> None:
    images = Recorded(images=stripes().train_inputs)
    samples = of(replace(stripes(), train_inputs=images), index := torch.arange(150)[None])
    batches = samples.batches(index, 16)
    next(batches)
    assert images.closed == []
    batches.close()
    assert images.closed == [True]


def test_images_that_replicates_share_are_expanded_behind_the_scaling() -> None:
    class Shared(Recorded):
        def batches(self, index: Tensor, batch: int, keys: object) -> object:
            return (images[:1].expand(2, -1, -1, -1) for images in super().batches(index, batch, None))

    data = stripes()
    index = torch.arange(20).expand(2, -1)
    samples = of(replace(data, train_inputs=Shared(images=data.train_inputs)), index)
    for (x, _), (rule, _) in zip(samples.batches(index, 8), of(data, index).batches(index, 8), strict=True):
        assert isinstance(x, Tensor)
        assert x.stride(0) == 0
        assert torch.equal(x, rule)


@pytest.mark.parametrize("protocol", ["held_out", "paper"])
def test_a_share_keeps_so_much_of_every_split_and_of_every_class(protocol: str) -> None:
    data = stripes()
    by_class = data.test_targets.argsort()
    ordered = replace(data, test_targets=data.test_targets[by_class], test_inputs=data.test_inputs[by_class])
    config = replace(image_trial(seeds=(3, 4)), protocol=protocol)
    whole, tenth = parts(ordered, config), parts(ordered, with_task(config, share=0.1))
    trained = whole.train.index.shape[1]
    assert torch.equal(tenth.train.index, whole.train.index[:, : round(0.1 * trained)])
    assert tenth.validation.index.shape[1] == round(0.1 * whole.validation.index.shape[1])
    test = opened(ordered, with_task(config, share=0.1), device=CPU, dtype=torch.float32)
    assert test.index.tolist() == [[0, 10, 20, 30]] * 2
    assert set(test.targets[test.index[0]].tolist()) == {0, 1, 2}
    least = parts(ordered, with_task(config, share=1e-6))
    assert (least.train.index.shape[1], least.validation.index.shape[1]) == (1, 1)


def test_train_limit_counts_what_a_share_has_left() -> None:
    config = image_trial()
    share = parts(stripes(), with_task(config, share=0.5)).train.index
    assert torch.equal(parts(stripes(), with_task(config, share=0.5, train_limit=20)).train.index, share[:, :20])
    assert torch.equal(parts(stripes(), with_task(config, share=0.5, train_limit=120)).train.index, share)


def test_the_end_of_a_text_is_held_out_and_no_token_of_it_is_trained_on() -> None:
    length, tokens = 8, 301
    data = windows(tokens, length)
    config = with_task(trial("build_texts", seeds=(3, 4)), validation=0.1)
    found = parts(data, config)
    n = tokens - length
    first = n - round(0.1 * n)
    assert found.validation.index.tolist() == [list(range(first, n, length))] * 2
    assert isinstance(data.train_inputs, Tensor)
    held_out = set(data.train_inputs[found.validation.index[0]].flatten().tolist())
    seen = set(data.train_inputs[found.train.index[0]].flatten().tolist())
    seen |= set(data.train_targets[found.train.index[0]].flatten().tolist())
    assert max(seen) == min(held_out) - 1
    assert found.train.index.sort(dim=1).values.tolist() == [list(range(first - length))] * 2
    assert not torch.equal(found.train.index[0], found.train.index[1])


def test_under_protocol_paper_every_window_trains_and_the_test_text_validates() -> None:
    data = windows(120, 8)
    found = parts(data, replace(trial("build_texts"), protocol="paper"))
    assert found.train.index.sort(dim=1).values.tolist() == [list(range(112))] * 2
    assert found.validation.index.shape == (2, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (windows(20, 8), "texts has 12 windows of 8 tokens: none is left to train on when the last 0.5 of the text"),
        (translation(1, shipped=False), "texts has 1 training sample: nothing is left to train on"),
    ],
    ids=["windows", "samples"],
)
def test_nothing_left_to_train_on_is_said(data: Data, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parts(data, with_task(trial("build_texts"), validation=0.5))


@pytest.mark.parametrize("shipped", [True, False])
def test_batches_of_pairs_have_the_same_lengths_in_every_company(shipped: bool) -> None:
    data = translation(shipped=shipped)
    together, alone = trial("build_pairs", seeds=(3, 4, 5, 6)), trial("build_pairs", seeds=(5,))
    of_four, of_one = parts(data, together).train, parts(data, alone).train
    for epoch in (1, 2):
        index, own = epoch_index(together, of_four, epoch=epoch), epoch_index(alone, of_one, epoch=epoch)
        assert torch.equal(index[2:3], own)
        assert all(len(set(row)) == len(row) for row in index.tolist())
        lengths = [[t.shape for t in (*x, y)] for x, y in of_four.batches(index, 16)]
        for r in range(4):
            row = index[r : r + 1]
            of_row = [[t.shape for t in (*x, y)] for x, y in of_four.batches(row, 16)]
            assert [[s[2] for s in shapes] for shapes in of_row] == [[s[2] for s in shapes] for shapes in lengths]
        if shipped:
            assert not torch.equal(index[0].sort().values, index[1].sort().values)


def test_every_epoch_leaves_out_other_pairs_and_takes_its_batches_in_another_order() -> None:
    config = trial("build_pairs", seeds=(3,))
    samples = parts(translation(), config).train
    assert samples.pairs is not None
    epochs = [epoch_index(config, samples, epoch=epoch) for epoch in range(1, 21)]
    assert {index.shape for index in epochs} == {(1, 80)}
    assert set(torch.cat(epochs).flatten().tolist()) == set(range(90))
    orders = {tuple(samples.pairs.target[index[0]].view(5, 16).amax(1).tolist()) for index in epochs}
    assert len(orders) > 5
    for index in epochs:
        spread = samples.pairs.target[index[0]].view(5, 16)
        assert int((spread.amax(1) - spread.amin(1)).max()) <= 2


def test_steps_per_epoch_takes_the_first_batches_of_the_keyed_order() -> None:
    for task, data in (("build_pairs", translation()), ("build_texts", windows(200, 8))):
        config = trial(task)
        few = with_training(config, steps_per_epoch=3)
        samples = parts(data, config).train
        whole, first = (epoch_index(one, samples, epoch=1) for one in (config, few))
        assert torch.equal(first, whole[:, :48])
        many = with_training(config, steps_per_epoch=1000)
        assert torch.equal(epoch_index(many, samples, epoch=1), whole)


@pytest.mark.parametrize("keyed", [[8, 9], None])
def test_the_target_of_a_set_is_the_place_of_its_anomaly_in_every_batch(keyed: list[int] | None) -> None:
    labels = torch.arange(60) % 4
    sets = AnomalySets(features=torch.arange(60.0)[:, None], members=members(labels, name="train"), name="train")
    data = Data(train_inputs=sets, train_targets=sets.places, test_inputs=sets, test_targets=sets.places)
    index = torch.tensor([[4, 9, 30], [1, 1, 2]])
    for rows in (index, index[:1].expand(2, -1)):
        batches = list(of(data, rows).batches(rows, 2, keys=keyed))
        found = torch.cat([x[..., 0].gather(2, y[..., None])[..., 0] for x, y in batches], dim=1)  # type: ignore[index]
        assert torch.equal(found.long(), rows)


def drawn(config: TrialConfig) -> dict[str, list[object]]:
    """Return all that is drawn for a trial's data and epochs."""
    found = parts(windows(200, 8) if "texts" in config.task.task else stripes(), config)
    return {
        "split": [found.train.index.tolist()],
        "order": [epoch_index(config, found.train, epoch=epoch).tolist() for epoch in (1, 2)],
        "keys": [key for purpose in ("dropout", "augmentation") for e in (1, 2) for key in keys(config, purpose, e)],
    }


@pytest.mark.parametrize("config", [image_trial(seeds=(3, 4)), trial("build_texts")], ids=["images", "texts"])
def test_trials_of_the_same_seeds_draw_the_same_whatever_else_differs(config: TrialConfig) -> None:
    """Else a comparison's differences, paired by seed, would hold the noise of the draws."""
    narrow = with_model(config, family(config).model.model_copy(update={"width": 4}))
    other = replace(
        with_training(narrow, learning_rate=0.5),
        key=replace(config.key, number=9),
        variant="other",
    )
    assert drawn(other) == drawn(config)
    elsewhere = replace(config, key=replace(config.key, dataset="elsewhere"))
    for changed in (elsewhere, replace(config, study_seed=8), replace(config, seeds=(5, 6))):
        assert all(drawn(changed)[name] != rule for name, rule in drawn(config).items())
    assert len(set(drawn(config)["keys"])) == 8


def test_a_share_of_a_text_keeps_windows_from_all_of_what_is_held_out() -> None:
    config = with_task(trial("build_texts"), validation=0.5)
    whole, share = (parts(windows(400, 8), with_task(config, share=s)) for s in (1.0, 0.25))
    kept = round(0.25 * whole.validation.index.shape[1])
    assert share.validation.index.shape[1] == kept
    assert share.validation.index[0].tolist() == [
        int(whole.validation.index[0, i * whole.validation.index.shape[1] // kept]) for i in range(kept)
    ]
    assert torch.equal(share.train.index, whole.train.index[:, : round(0.25 * whole.train.index.shape[1])])


def test_evaluated_pairs_are_sorted_by_length_and_all_there() -> None:
    samples = parts(translation(), trial("build_pairs")).validation
    assert samples.pairs is not None
    lengths = [
        tuple(pair) for pair in torch.stack([samples.pairs.target, samples.pairs.source], 1)[samples.index[0]].tolist()
    ]
    assert lengths == sorted(lengths)
    assert samples.index.sort(dim=1).values.tolist() == [list(range(24))] * 2
    source, _ = pairs(24, seed=2)
    assert torch.equal(
        samples.pairs.source, torch.tensor([len([*itertools.takewhile(bool, row)]) for row in source.tolist()])
    )
    assert torch.equal(samples.pairs.target, samples.pairs.source + 1)


@pytest.mark.services
def test_grey_images_in_float64_are_scaled_in_float64() -> None:
    """numpy in float64 is the oracle: float32 on the way is off by 4e-8 of a value."""
    images, targets = read_digits(Digits(ImageConfig(task="digits")).location(None))
    mean, std = 0.1307 * 255, 0.3081 * 255  # those of MNIST, which float32 does not hold
    split = images, targets
    data = patch_data(split, split, patch=(8, 8), mean=(mean,), std=(std,), class_names=tuple("0123456789"))
    index = torch.arange(64)[None]
    samples = Samples.of(data, data.train_inputs, data.train_targets, index, device=CPU, dtype=torch.float64)
    x, _ = next(samples.batches(index, 64))
    expected = (images[:64].reshape(64, 1, 64).numpy().astype(np.float64) - mean) / std
    assert x.dtype == torch.float64
    np.testing.assert_allclose(x[0].numpy(), expected, rtol=0, atol=1e-13)
