"""Trains a LightningModule one epoch at a time, so that each epoch is a report and a checkpoint (docs/functions.md)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate.base.errors import TrialError

if TYPE_CHECKING:
    from ablate.functions.run import Run

NAME = "ablate"  # the checkpoint that stays in memory; every other one is written as the Trainer would
STOPPED = "ablate_stopped"  # of its state: whether another callback has ended the training
REPORTED = ("val_", "train_")
NOT_NEEDED = ("state_dict", "hyper_parameters", "datamodule_hyper_parameters")  # the code makes a module with its own


class _Memory:
    """A CheckpointIO that holds what the Trainer saves as NAME; the weights are those of the module itself."""

    def __init__(self, other: Any, model: Any) -> None:
        self.state: Mapping[str, Any] = {}
        self._other, self._model = other, model

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if path != NAME:
            self._other.save_checkpoint(checkpoint, path, storage_options)
        else:
            self.state = {key: value for key, value in checkpoint.items() if key not in NOT_NEEDED}

    def load_checkpoint(self, path: Any, *further: Any, **options: Any) -> dict[str, Any]:
        if path != NAME:
            found: dict[str, Any] = self._other.load_checkpoint(path, *further, **options)
            return found
        return copy.deepcopy({**self.state, "state_dict": self._model.state_dict()})

    def remove_checkpoint(self, path: Any) -> None:
        self._other.remove_checkpoint(path)

    def teardown(self) -> None:
        self._other.teardown()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state


def fit(
    run: Run, trainer: Any, model: Any, *data: Any, names: Mapping[str, str] | None = None, **named: Any
) -> Iterator[dict[str, float]]:
    """Yield after each epoch what `trainer.fit(model, *data, **named)` logged; `model` comes from `run.build`.

    The metrics are those of `trainer.callback_metrics` that start with `val_` or `train_`; a slash in a name becomes
    an underscore. `names` gives others: `{"valid_loss": "val_loss"}`. Each epoch is one `Trainer.fit` that continues
    from the last one's optimisers, schedulers, callbacks and counters, whether or not the trial was interrupted. The
    study file's `epochs` replaces `max_epochs`, and an EarlyStopping of the Trainer ends the trial. Raises TrialError
    for a Trainer of several devices or with a bound on its steps, for an epoch without a metric, and for two logged
    names that are one metric.
    """
    if trainer.world_size != 1 or trainer.max_steps != -1:
        raise TrialError("ablate.functions.lightning.fit: give the Trainer devices=1 and no max_steps")
    kinds = {kind.__name__ for each in trainer.callbacks for kind in type(each).__mro__}
    if averaging := kinds & {"WeightAveraging", "StochasticWeightAveraging"}:
        raise TrialError(
            f"the Trainer has {averaging.pop()}, which averages over one fit, and each epoch is a fit: leave it out"
        )
    root = type(trainer).__module__.partition(".trainer")[0]  # lightning.pytorch or pytorch_lightning
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # lines that would repeat each epoch
    memory = _Memory(trainer.strategy.checkpoint_io, model)
    trainer.strategy.checkpoint_io = memory
    fewest, trainer.fit_loop.min_epochs = trainer.fit_loop.min_epochs or 0, 0
    trainer.callbacks.insert(0, _one_epoch(import_module(f"{root}.callbacks").LambdaCallback, run))
    run.keep(model=model, trainer=memory)
    for epoch in run.epochs():
        if memory.state.get(STOPPED):
            return
        run.seed_globals("start")  # the same split and the same order of set-up in each epoch
        trainer.fit_loop.max_epochs = run.length  # of the schedules, which are set up before the epoch
        if memory.state:
            trainer.num_sanity_val_steps = 0  # the first epoch has done it
        try:
            trainer.fit(model, *data, **named, ckpt_path=NAME if memory.state else None)
        except SystemExit:  # Lightning's answer to a signal
            run.pause_if_asked()
            raise
        if trainer.current_epoch != epoch:
            raise TrialError(f"the Trainer has done {trainer.current_epoch} epochs where {epoch} were due")
        trainer.save_checkpoint(NAME)
        memory.state = {**memory.state, STOPPED: trainer.should_stop and epoch >= fewest}
        yield _metrics(trainer, names or {}, epoch)


def _metrics(trainer: Any, names: Mapping[str, str], epoch: int) -> dict[str, float]:
    """Return what an epoch logged, by the names of metrics; raise TrialError if there is none, or two have one name."""
    found: dict[str, float] = {}
    logged_as: dict[str, str] = {}
    for logged, value in trainer.callback_metrics.items():
        name = names.get(logged, logged.replace("/", "_"))
        if not name.startswith(REPORTED):
            continue
        if name in found:
            raise TrialError(
                f"the module logs {logged_as[name]!r} and {logged!r}, which are both the metric {name}: log one of them"
                ' under another name, or give fit names={"' + logged + '": "val_..."}'
            )
        found[name], logged_as[name] = float(value), logged
    if found:
        return found
    logged_names = ", ".join(trainer.callback_metrics) or "nothing"
    if trainer.check_val_every_n_epoch != 1:
        hint = f"the Trainer has check_val_every_n_epoch={trainer.check_val_every_n_epoch}: give it 1"
    elif trainer.limit_val_batches == 0:
        hint = "the Trainer has limit_val_batches=0: let it validate"
    else:
        hint = 'a metric is logged as val_... or train_..., or mapped by fit(..., names={"valid_loss": "val_loss"})'
    raise TrialError(f"epoch {epoch} logged {logged_names}, which is no metric: {hint}")


def _one_epoch(callback: Any, run: Run) -> Any:
    """Return a callback that keys the random numbers of an epoch, ends the fit after it, and pauses between batches."""

    def start(trainer: Any, module: Any) -> None:
        run.seed_globals("epoch", run.epoch)
        trainer.fit_loop.max_epochs = run.epoch

    return callback(
        on_fit_start=lambda trainer, module: run.seed_globals("loaders", run.epoch),  # seeds of a loader's workers
        on_train_epoch_start=start,
        on_train_batch_start=lambda *_: run.pause_if_asked(),
    )
