"""What the trials of a pack share (task, data, network), and what each trial has alone (progress, weights)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ablate.base.sample_files import SampleValues
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data, Task, load_task
from ablate.engine.tasks.base import Decoded
from ablate.engine.training.checkpoint import keep_samples
from ablate.engine.training.corpus import corpus_metrics
from ablate.engine.training.evaluate import BATCH, GPU_BATCH, GPU_TOKENS, Means, SampleMeans, evaluate
from ablate.engine.training.family import family
from ablate.engine.training.made_up import metric_names
from ablate.engine.training.modules import initial_weights, plain_module
from ablate.engine.training.optim import ReplicaSettings
from ablate.engine.training.order import steps_per_epoch
from ablate.engine.training.progress import TrainingProgress
from ablate.engine.training.replica_group import DTYPES, ReplicaGroup
from ablate.engine.training.samples import Samples
from ablate.engine.training.schedule import multipliers
from ablate.engine.training.splits import Splits, split, test_part
from ablate.engine.training.state import Replicas, ReplicaState
from ablate.engine.training.train_config import TrainConfig

Between = Callable[[], None]  # called between two batches; may raise


@dataclass(kw_only=True, eq=False)
class Trained:
    """A trial of a pack, whose first replicate in the group is `start` in the epoch that is trained.

    `begun` holds the means of an interrupted epoch until training continues. `saved_at` is the pack's training time in
    seconds when the trial joined or last wrote a checkpoint. `fault` is the error that ends the trial after this epoch.
    """

    config: TrialConfig
    parts: Splits
    schedule: Tensor
    replicas: Replicas
    progress: TrainingProgress
    start: int = 0
    begun: Means | None = None
    saved_at: float = 0.0
    fault: Exception | None = None

    @property
    def training(self) -> TrainConfig:
        """The settings of its training."""
        return family(self.config).training

    @property
    def span(self) -> range:
        """The numbers of its replicates in the group."""
        return range(self.start, self.start + len(self.config.seeds))

    @property
    def alive(self) -> Tensor:
        """Which replicates are not frozen, bool [R]."""
        return self.replicas.state.alive[:, 0]

    def of(self, values: Tensor) -> Tensor:
        """Return the trial's part of `values`, which has an entry for each replicate of the group."""
        return values[self.start : self.span.stop]

    def listed(self, values: dict[str, Tensor]) -> tuple[dict[str, float], ...]:
        """Return a dictionary of metrics per replicate from `values` [R] by name; NaN for a diverged replicate."""
        listed = torch.stack([torch.where(self.alive, value, torch.nan) for value in values.values()]).T.tolist()
        return tuple(dict(zip(values, one, strict=True)) for one in listed)


@dataclass(kw_only=True)
class Common:
    """What the trials of a pack share: task, data, and the group that trains their replicates.

    `lined` are the trials whose replicates the group holds, in order. `judged` is as in TrialPack.
    """

    task: Task
    data: Data
    shape: InputShape
    group: ReplicaGroup
    parts: Splits
    judged: bool
    lined: list[Trained] = field(default_factory=list)
    test: Samples | None = None

    @staticmethod
    def of(
        config: TrialConfig, *, data_dir: Path | None, device: str, load: Callable[[TrialConfig], Data], judged: bool
    ) -> Common:
        """Load what trials like `config` share; raise DataError, RegistryError or RequestError."""
        task = load_task(config.task)
        shape, data, training = task.shape(data_dir), load(config), family(config).training
        parts = split(data, config, device=torch.device(device), dtype=DTYPES[training.precision])
        module = plain_module(config, shape)
        group = ReplicaGroup(
            module,
            [initial_weights(config, shape, replicate=0)],
            [training],
            [torch.ones(1, dtype=torch.float64)],
            loss=task.loss,
            pad=data.pad,
            device=device,
        )
        return Common(task=task, data=data, shape=shape, group=group, parts=parts, judged=judged)

    def prepared(self, member: Member) -> Trained:
        """Return a trial before its first step; raise DataError if no sample is left to train or to validate on."""
        config, layout = member.config, self.group.layout
        training = family(config).training
        parts = split(self.data, config, device=self.group.device, dtype=self.group.dtype, beside=self.parts)
        steps = steps_per_epoch(parts.train.index.shape[1], training)
        seeds = range(len(config.seeds))
        state = layout.start([initial_weights(config, self.shape, replicate=replicate) for replicate in seeds])
        replicas = Replicas(layout=layout, state=state)
        return Trained(
            config=config,
            parts=parts,
            schedule=multipliers(training.schedule, epochs=config.epochs, steps_per_epoch=steps),
            replicas=replicas,
            progress=TrainingProgress(config, self.shape, replicas, place=member.checkpoints, attempt=member.attempt),
        )

    def line_up(self, trials: list[Trained]) -> None:
        """Let the group hold the replicates of `trials`, in this order."""
        if trials == self.lined:
            return
        settings = ReplicaSettings.of(
            [trial.training for trial in trials for _ in trial.config.seeds],
            [trial.schedule for trial in trials for _ in trial.config.seeds],
        )
        self.group.take(ReplicaState.joined([trial.replicas.state for trial in trials]), settings)
        start = 0
        for trial in trials:
            trial.start = start
            start = trial.span.stop
            trial.replicas.state = self.group.state.part(trial.start, start)
        self.lined = trials

    def validated(self, trials: Sequence[Trained], between: Between) -> dict[str, Tensor]:
        """Return loss and metrics by name of the replicates of `trials`, in this order, on their validation samples."""
        index = torch.cat([trial.parts.validation.index for trial in trials])
        samples = replace(trials[0].parts.validation, index=index)
        return self._evaluated(trials[0], samples, [place for trial in trials for place in trial.span], between)

    def test_values(self, trial: Trained, between: Between) -> dict[str, Tensor]:
        """Return the metrics of a trial on the test split by name, one value per replicate.

        Of metrics that are means over samples, each sample's value is written beside the trial's checkpoints. Raises
        CheckpointDownError if that fails.
        """
        group = self.group
        if self.test is None:
            self.test = test_part(self.data, trial.config, device=group.device, dtype=group.dtype)
        test, each = self.test.shared(len(trial.config.seeds)), SampleMeans(group.pad)
        found = self._evaluated(trial, test, trial.span, between, each=each)
        found |= self.corpus(trial, test, "test", between)
        values = {f"test_{name}": value for name, value in each.values().items()}
        if (place := trial.progress.place) is not None:
            keep_samples(place, trial.progress.attempt, SampleValues(values=values, split=self.test.digest))
        return {f"test_{name}": value for name, value in found.items()}

    def corpus(self, trial: Trained, samples: Samples, part: str, between: Between) -> dict[str, Tensor]:
        """Return the task's metrics of generated text, float64 [R] each; empty for other tasks or without `judged`.

        A trial of such a task trains alone, so all replicates of the group are its own.
        """
        if not self.judged or not isinstance(self.task, Decoded):
            return {}
        return corpus_metrics(
            self.group, self.task, self.data, samples, part=part, shape=self.shape, batch=BATCH, between=between
        )

    def _evaluated(
        self,
        trial: Trained,
        samples: Samples,
        replicates: Sequence[int],
        between: Between,
        each: SampleMeans | None = None,
    ) -> dict[str, Tensor]:
        """Evaluate replicates; scores per token and images from disk use the batch size of training, at most BATCH."""
        large = self.shape.output == "token" or not isinstance(samples.inputs, Tensor)
        most = BATCH
        if self.group.device.type == "cuda":
            most = max(BATCH, min(GPU_BATCH, GPU_TOKENS // (len(replicates) * self.shape.tokens)))
        batch = min(BATCH, trial.training.batch_size) if large else most
        return evaluate(self.group, self.task, samples, replicates=replicates, batch=batch, between=between, each=each)

    def diverged(self, trial: Trained) -> Report:
        """Return the last report of a trial whose replicates have all diverged: all metrics NaN, and no checkpoint."""
        names = (*metric_names(self.task, self.shape), "learning_rate")
        seeds = trial.config.seeds
        return Report(
            epoch=trial.progress.epoch + 1,
            metrics=tuple(dict.fromkeys(names, float("nan")) for _ in seeds),
            wall_seconds=trial.progress.seconds,
            diverged=tuple(True for _ in seeds),
            final=True,
        )
