"""Trains by a Hugging Face Trainer: its evaluations are reports, its checkpoints the state (docs/functions.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ablate.base.errors import TrialError
from ablate.functions.keeping import unchanged_randomness
from ablate.functions.pretrained import model_of

if TYPE_CHECKING:
    from ablate.functions.run import Run


class Reports(TrainerCallback):  # type: ignore[misc]
    """Reports what an evaluation found, once the Trainer has written the checkpoint that belongs to it."""

    def __init__(self, run: Run, kept: Any, names: Mapping[str, str]) -> None:
        self._run, self._kept, self._names, self._metrics = run, kept, names, dict[str, float]()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any) -> None:
        found = [n for n in metrics if n.startswith("eval_") and not n.endswith(("_runtime", "_per_second", "_time"))]
        self._metrics = {self._names.get(name, f"val_{name[5:]}"): metrics[name] for name in found}

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._kept.checkpoint = f"checkpoint-{state.global_step}"
        self._kept.stopped = control.should_training_stop and state.global_step < state.max_steps
        with unchanged_randomness():  # the Trainer's random numbers continue as when it resumes
            self._run.report(self._metrics, step=state.global_step)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._run.pause_if_asked()


def fit(run: Run, trainer: Any, *, names: Mapping[str, str] | None = None) -> None:
    """Do what `trainer.train()` does, with `epochs` evaluations, from the Trainer's last checkpoint in `run.folder`.

    `eval_loss` is the metric `val_loss`, and so on; `names` gives others. Raises TrialError without evaluations.
    """
    args = trainer.args
    if args.eval_strategy not in ("epoch", "steps") or (args.eval_strategy == "steps" and args.eval_steps < 1):
        raise TrialError("give TrainingArguments eval_strategy='epoch', or 'steps' with a whole number of eval_steps")
    args.output_dir, args.seed, args.restore_callback_states_from_checkpoint = str(run.folder), run.seed, True
    kept = run.keep(model=model_of(trainer), checkpoint="", stopped=False)
    if kept.checkpoint and not (run.folder / kept.checkpoint).is_dir():  # the folder did not outlive its machine
        run.start_over()
        kept.checkpoint, kept.stopped = "", False
    done = run.begin()
    length = done if kept.stopped else run.length  # a callback has ended the training
    steps = length * int(args.eval_steps) if args.eval_strategy == "steps" else -1
    args.num_train_epochs, args.max_steps, args.save_steps = length, steps, args.eval_steps or args.save_steps
    args.save_strategy, args.save_only_model = args.eval_strategy, False
    args.save_total_limit = 3 if args.load_best_model_at_end else 2  # the two newest, and the best one
    run.seed_globals("order")  # the Trainer derives its order of samples from it
    trainer.add_callback(Reports(run, kept, names or {}))
    trainer.train(resume_from_checkpoint=str(run.folder / kept.checkpoint) if kept.checkpoint else None)
