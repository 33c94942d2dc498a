"""A LightningModule trained one epoch at a time equals one uninterrupted `Trainer.fit`, wherever it was interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, random_split

from ablate.base.errors import TrialError
from ablate.functions.keeping import seed_globals
from ablate.functions.lightning import fit
from ablate.functions.run import Kept, Run, TrialPausedError

EPOCHS = 4
pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore")]  # it imports for seconds; its warnings
Schedule = Callable[[Any, Any], dict[str, Any]]


def package(name: str) -> Any:
    return pytest.importorskip(name, reason="lightning is an optional package")


def one_cycle(optimizer: Any, trainer: Any) -> dict[str, Any]:
    steps = trainer.estimated_stepping_batches
    return {
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps),
        "interval": "step",
    }


def each_epoch(optimizer: Any, trainer: Any) -> dict[str, Any]:
    return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), "interval": "epoch"}


def plateau(optimizer: Any, trainer: Any) -> dict[str, Any]:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    return {"scheduler": scheduler, "monitor": "val_loss"}


def parts(
    lightning: Any, schedule: Schedule = one_cycle, *, workers: int = 0, own: bool = False
) -> tuple[Callable[[], Any], Any]:
    """Return a module and a data module whose split and order draw from the global generator.

    `own`: the loader draws the seeds of its workers from a generator of its own. Lightning makes a loader's iterator
    before the first hook of a continued epoch, and after it in a fit that was not interrupted.
    """

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))

        def step(self, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = self.step(batch)
            self.log("train/loss", loss, on_step=False, on_epoch=True)
            self.log("other", 1.0)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.step(batch))

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            return {"optimizer": optimizer, "lr_scheduler": schedule(optimizer, self.trainer)}

    class Data(lightning.LightningDataModule):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            x = torch.sin(torch.arange(256.0)).reshape(64, 4)
            self.train, self.val = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [48, 16])

        def train_dataloader(self) -> Any:
            generator = torch.Generator() if own else None
            return DataLoader(
                self.train, 16, sampler=RandomSampler(self.train), generator=generator, num_workers=workers
            )

        def val_dataloader(self) -> Any:
            return DataLoader(self.val, batch_size=16)

    return Module, Data


def trainer(lightning: Any, **options: Any) -> Any:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(**quiet | {"max_epochs": EPOCHS} | options)


def a_run(found: Kept | None = None, **options: Any) -> Run:
    run = Run(study_seed=3, dataset="data", seed=1, length=EPOCHS, found=found, **options)
    run.seed_globals("start")
    return run


def stepped(lightning: Any, run: Run, made: tuple[Any, Any], **options: Any) -> Iterator[dict[str, float]]:
    module, data = made
    return fit(run, trainer(lightning, **options), run.build(module), data())


def uninterrupted(lightning: Any, made: tuple[Any, Any]) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Return the metrics and the last weights of one plain `Trainer.fit` with the same seeds."""
    module, data = made
    run, found = a_run(), []
    model = run.build(module)

    def epoch(trainer: Any, _: Any) -> None:
        run.seed_globals("epoch", trainer.current_epoch + 1)

    class Reports(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, _: Any) -> None:
            found.append(float(trainer.callback_metrics["val_loss"]))

    begins = import_module(f"{lightning.Trainer.__module__.partition('.trainer')[0]}.callbacks").LambdaCallback(
        on_fit_start=lambda *_: run.seed_globals("loaders", 1), on_train_epoch_start=epoch
    )
    run.seed_globals("start")
    trainer(lightning, callbacks=[begins, Reports()]).fit(model, data())
    return [{"val_loss": loss} for loss in found], model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning"])
@pytest.mark.parametrize("schedule", [one_cycle, each_epoch, plateau])
def test_epochs_one_at_a_time_are_those_of_one_uninterrupted_fit(name: str, schedule: Schedule) -> None:
    lightning = package(name)
    made = parts(lightning, schedule, own=True)
    expected, weights = uninterrupted(lightning, made)
    run = a_run()
    found = list(stepped(lightning, run, made))
    assert [{"val_loss": metrics["val_loss"]} for metrics in found] == expected
    assert same(run.kept["model"].state_dict(), weights)
    assert len({metrics["val_loss"] for metrics in found}) == EPOCHS
    assert all(metrics.keys() == {"val_loss", "train_loss"} for metrics in found)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_fit_that_continues_in_another_process_ends_with_the_same_bits(after: int, workers: int) -> None:
    lightning = package("lightning")
    made = parts(lightning, workers=workers)
    run = a_run()
    expected = list(stepped(lightning, run, made))
    first = a_run()
    reports = stepped(lightning, first, made)
    found = [next(reports) for _ in range(after)]
    kept = first.state()
    reports.close()
    seed_globals(99)
    second = a_run(kept)
    found += stepped(lightning, second, made)
    assert found == expected
    assert same(second.kept["model"].state_dict(), run.kept["model"].state_dict())


@pytest.mark.parametrize("batch", [2, 5, 9])
def test_a_fit_pauses_between_two_batches(batch: int) -> None:
    lightning = package("lightning")
    asked = iter(range(10**6))
    found = []
    with pytest.raises(TrialPausedError):
        found.extend(stepped(lightning, a_run(pause=lambda: next(asked) >= batch), parts(lightning)))
    assert len(found) == (batch - 1) // 4  # asked before an epoch and before each of its 3 batches


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end"])
def test_a_signal_that_ends_lightnings_fit_pauses_the_trial(hook: str) -> None:
    lightning = package("lightning")
    arrived: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))

    def terminate(trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == 1 and not arrived:
            signal.raise_signal(signal.SIGTERM)

    terminated = import_module("lightning.pytorch.callbacks").LambdaCallback(**{hook: terminate})
    run = a_run(pause=lambda: bool(arrived))
    try:
        with pytest.raises(TrialPausedError):
            list(stepped(lightning, run, parts(lightning), callbacks=[terminated]))
        assert (run.epoch, len(arrived)) == (2, 1)
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_checkpoint_of_the_users_own_is_still_a_file(tmp_path: Path) -> None:
    lightning = package("lightning")
    callbacks = import_module("lightning.pytorch.callbacks")
    best = callbacks.ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", filename="best")
    run = a_run()
    losses = [
        metrics["val_loss"]
        for metrics in stepped(lightning, run, parts(lightning), enable_checkpointing=True, callbacks=[best])
    ]
    assert Path(best.best_model_path).is_file()
    assert float(best.best_model_score) == min(losses)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_early_stopping_of_the_users_own_ends_the_trial_also_after_a_kill(after: int) -> None:
    """A constant loss is never better than the first one: with a patience of 2, the third epoch is the last."""
    lightning = package("lightning")
    made = (logging_module(lightning, "val_loss"), parts(lightning)[1])

    def stopping() -> Any:
        return import_module("lightning.pytorch.callbacks").EarlyStopping("val_loss", patience=2)

    first = a_run()
    reports = stepped(lightning, first, made, callbacks=[stopping()])
    found = [next(reports) for _ in range(after)]
    kept = first.state() if after else None
    reports.close()
    found += stepped(lightning, a_run(kept), made, callbacks=[stopping()])
    assert [metrics["val_loss"] for metrics in found] == [1.0] * 3


@pytest.mark.parametrize("options", [{"max_steps": 7}, {"devices": 2}])
def test_a_trainer_that_counts_steps_or_devices_is_refused(options: dict[str, Any]) -> None:
    lightning = package("lightning")
    with pytest.raises(TrialError, match="give the Trainer devices=1 and no max_steps"):
        list(stepped(lightning, a_run(), parts(lightning), **options))


@pytest.mark.parametrize("name", ["StochasticWeightAveraging", "WeightAveraging"])
def test_averages_over_one_fit_are_refused(name: str) -> None:
    lightning = package("lightning")
    kind = getattr(import_module("lightning.pytorch.callbacks"), name)
    callback = kind(swa_lrs=0.1) if name.startswith("Stoch") else kind()
    with pytest.raises(TrialError, match=f"the Trainer has {name}, which averages over one fit, and each epoch"):
        list(stepped(lightning, a_run(), parts(lightning), callbacks=[callback]))


def logging_module(lightning: Any, *names: str) -> Any:
    """Return the class of a module that logs 1.0, 2.0, … under names, and saves a hyperparameter."""

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, net: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            for place, name in enumerate(names):
                self.log(name, place + 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    return Module


@pytest.mark.parametrize("after", [1, 3])
def test_hyperparameters_of_any_kind_are_left_out_of_checkpoints(after: int) -> None:
    lightning = package("lightning")
    module, data = logging_module(lightning, "val_loss"), parts(lightning)[1]

    def reports(run: Run) -> Iterator[dict[str, float]]:
        model = run.build(module, net=nn.Sequential(nn.Linear(2, 2)))
        return fit(run, trainer(lightning), model, data())

    run = a_run()
    expected = list(reports(run))
    first = a_run()
    begun = reports(first)
    found = [next(begun) for _ in range(after)]
    second = a_run(first.state())
    assert found + list(reports(second)) == expected
    assert same(second.kept["model"].state_dict(), run.kept["model"].state_dict())


def test_logged_names_are_mapped() -> None:
    lightning = package("lightning")
    run, names = a_run(), {"valid_loss": "val_loss", "acc": "val_accuracy"}
    model = run.build(logging_module(lightning, "valid_loss", "acc", "other", "val/top"))
    found = next(fit(run, trainer(lightning), model, parts(lightning)[1](), names=names))
    assert found == {"val_loss": 1.0, "val_accuracy": 2.0, "val_top": 4.0}


@pytest.mark.parametrize(
    ("logged", "options", "says"),
    [
        (("val_loss", "val/loss"), {}, "logs 'val_loss' and 'val/loss', which are both the metric val_loss"),
        (("val/loss", "val_loss"), {}, "logs 'val/loss' and 'val_loss', which are both the metric val_loss"),
        (("valid_loss",), {}, r'epoch 1 logged valid_loss, which is no metric: .*names=\{"valid_loss": "val_loss"\}'),
        ((), {}, "epoch 1 logged nothing, which is no metric"),
        (("val_loss",), {"check_val_every_n_epoch": 2}, "the Trainer has check_val_every_n_epoch=2: give it 1"),
        (("val_loss",), {"limit_val_batches": 0}, "the Trainer has limit_val_batches=0: let it validate"),
    ],
)
def test_names_that_are_no_metrics_are_refused(logged: tuple[str, ...], options: dict[str, Any], says: str) -> None:
    lightning = package("lightning")
    run = a_run()
    made = (logging_module(lightning, *logged), parts(lightning)[1])
    with pytest.raises(TrialError, match=says):
        next(stepped(lightning, run, made, **options))


@pytest.mark.parametrize("fewest", [1, 3])
def test_early_stopping_does_not_end_a_trial_before_the_fewest_epochs(fewest: int) -> None:
    lightning = package("lightning")
    stop = import_module("lightning.pytorch.callbacks").EarlyStopping("val_loss", patience=1, mode="max")
    found = list(stepped(lightning, a_run(), parts(lightning), callbacks=[stop], min_epochs=fewest))
    assert len(found) == max(2, fewest), "a loss that falls is never higher than at the first epoch"
