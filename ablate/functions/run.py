"""What a training function is given: one seed of one trial, with its epochs, random streams and checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from ablate.base.errors import TrialError
from ablate.base.files import Place
from ablate.base.randomness import stream
from ablate.functions.batches import Batches, keyed_loader, refuse_own_generator, seed_worker
from ablate.functions.blame import place_of_frame
from ablate.functions.keeping import check_keepable, get_state, seed_globals, set_state
from ablate.functions.networks.keyed import build_keyed, count_parameters
from ablate.functions.networks.replacing import replace_parts
from ablate.functions.networks.watching import Replacements, check_parts
from ablate.functions.output import seed_folder
from ablate.functions.state import Holder, State, Value, is_value

M = TypeVar("M", bound=nn.Module)
BATCH = 64  # samples of a batch of `Run.loader` unless it is told


class TrialStoppedError(BaseException):
    """The study has stopped this trial. No Exception, so that `except Exception` around a report does not catch it."""


class TrialPausedError(BaseException):
    """The trial is to pause; what was trained since its last report is trained again."""


class Reporter(Protocol):
    """Takes the reports of a run, and says how the study ends it: `functions.seed.Seed`."""

    def report(self, value: Any, place: str) -> None:
        """Report what a line of the user's code gives (`mine.py:12`), and return once the trial is to continue."""

    def check(self) -> None:
        """Raise what has ended the run, if anything has."""

    def end(self, kind: type[BaseException], reason: str) -> BaseException:
        """Return what ends the run; it is raised again wherever the code asks."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The state of one seed at a checkpoint: epochs done, the kept objects, the streams, whether its code has ended."""

    epoch: int
    states: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    streams: Mapping[str, Any] = field(default_factory=dict)  # states of the generators of `Run.stream`
    ended: bool = False


class Run:
    """One seed of one trial.

    `seed` is the replicate's seed, `dataset` the label of the data set, `device` a torch device, `stage` "tune",
    "search" or "confirm", `length` the number of epochs of a full trial. Everything random is keyed by (study seed,
    data set, seed, purpose) and equal in every trial of a study.
    """

    def __init__(
        self,
        *,
        study_seed: int,
        dataset: str,
        seed: int,
        length: int,
        device: str = "cpu",
        stage: str = "search",
        replace: Mapping[str, Any] | None = None,
        pause: Callable[[], bool] = lambda: False,
        found: Kept | None = None,
        files: Place | None = None,
    ) -> None:
        self.seed, self.dataset, self.stage, self.device = seed, dataset, stage, torch.device(device)
        self.length = length
        self.params: int | None = None
        self.kept: dict[str, Any] = {}
        self.epoch = 0
        self._replace = replace or {}
        self._study_seed, self._pause, self._found, self._files = study_seed, pause, found, files
        self._begun = self.loops = False  # whether training has begun, and whether by `epochs`
        self.stays = False  # whether it does not pause any more
        self.restored = 0  # reports of the checkpoint that `keep` has restored
        self.reporter: Reporter | None = None
        self.reported: Kept | None = None  # the state at the first report of this process
        self._loaders = self._built = 0
        self.replacements: list[Replacements] = []  # what was replaced in the first network
        self._streams: dict[str, np.random.Generator] = {}

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """Return a NumPy generator of your own, keyed by this seed and `purpose`; a checkpoint holds its state."""
        name = "/".join(map(str, purpose))
        if name not in self._streams:
            self._streams[name] = self._stream("function", *purpose)
            if self._begun:
                self._restore_stream(name)
        return self._streams[name]

    def keep(self, **kept: Any) -> State:
        """Say what a checkpoint holds, and return the values among it; what a checkpoint holds is restored here.

        Kept are objects that have state_dict and load_state_dict, or save(folder) and load(folder), and values:
        numbers, text, arrays, lists and dictionaries. `state = run.keep(best=0.0)` returns the values; what the
        function sets, `state.best = ...`, is in the next checkpoint. Raises TrialError for what cannot be kept, and
        after the first epoch has begun.
        """
        if self._begun:
            raise TrialError("run.keep was called after run.epochs() had begun: call it before the loop")
        state = State({name: value for name, value in kept.items() if is_value(value)})
        for name, thing in kept.items():
            if name in self.kept:
                raise TrialError(f"run.keep({name}=...) was called twice")
            known = Value(state, name) if name in state else thing
            check_keepable(name, known)
            self.kept[name] = known
            if self._found is not None and name in self._found.states:
                set_state(name, known, self._found.states[name], self._found.tensors)
                self.epoch = self.restored = self._found.epoch
        return state

    def restore(self, found: Kept) -> None:
        """Give what is kept the state of a report; raise TrialError if it does not take it."""
        for name, thing in self.kept.items():
            set_state(name, thing, found.states[name], found.tensors)

    def value(self, name: str) -> Any:
        """Return what is kept by a name: the object, or the value of now."""
        thing = self.kept[name]
        return thing.now if isinstance(thing, Value | Holder) else thing

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, from 1; each begins with keyed global generators.

        Seeded are Python's, NumPy's and torch's. A function that keeps nothing begins with epoch 1 again after a
        restart. Raises TrialError if a checkpoint holds an object that is not kept any more, or the reverse.
        """
        self._begin()
        self.loops = True
        for epoch in range(self.epoch + 1, self.length + 1):
            self._refuse_changes_after_report()
            self.pause_if_asked()
            self._enter(epoch)
            yield epoch

    def begin(self) -> int:
        """Return how many reports were made before, in place of `epochs` in code that owns its loop.

        The global generators are then keyed for the next report, as they are after each report. It belongs right before
        the loop: what was set up before is equal after a restart. Raises TrialError as `epochs` does.
        """
        self._begin()
        self.pause_if_asked()
        self._enter(self.epoch)
        return self.epoch

    def report(self, metrics: Any, *, step: float | None = None) -> None:
        """Report metrics, and return once the report is committed and the trial is to continue.

        It may be called in any thread of the function, such as in a callback of a library that owns the loop. `step` is
        stored as a metric of that name. A stopped trial ends by an exception that is no Exception. Raises TrialError in
        another process.
        """
        self.hand_over(metrics if step is None else {**metrics, "step": step}, place_of_frame(sys._getframe(1)))

    def hand_over(self, metrics: Any, place: str) -> None:
        """Report what the function made at a line of its code (`mine.py:12`)."""
        if self.reporter is None:
            raise TrialError("run.report was called outside of a trial")
        if not self.loops:
            self._begin()
            self.epoch += 1
        self.reporter.report(metrics, place)
        if self.epoch < self.length and not self.loops:
            self.pause_if_asked()
            self._enter(self.epoch)

    def start_over(self) -> None:
        """Forget what the checkpoint holds, before training begins: files that belong to it are gone."""
        self._found, self.epoch, self.restored = None, 0, 0

    @cached_property
    def folder(self) -> Path:
        """A folder for files of this trial and seed. On a disk it is durable and kept beside the checkpoints.

        Where checkpoints are in an object store, or not written, it is a folder of this machine that does not outlive
        the process.
        """
        return seed_folder(self._files, self.seed)

    def _begin(self) -> None:
        """Restore the streams, once; raise TrialError if checkpoint and function keep other objects."""
        if self._begun:
            return
        self._begun = True
        for name in self._streams:
            self._restore_stream(name)
        if self._found is not None and self.kept:
            differing = ", ".join(sorted(self._found.states.keys() ^ self.kept.keys()))
            if differing:
                raise TrialError(f"run.keep: the checkpoint and the function do not keep the same objects: {differing}")
            if self._found.ended and self.reporter is not None:
                raise self.reporter.end(TrialStoppedError, "its training has ended before")

    def _enter(self, epoch: int) -> None:
        """Begin what leads to the next report."""
        self.epoch, self._loaders = epoch, 0
        due = epoch if self.loops else epoch + 1
        self.seed_globals("epoch", due)

    def loader(self, dataset: Dataset[Any], batch_size: int | None = BATCH, **options: Any) -> Batches:
        """Return batches of a torch Dataset in an order keyed by the epoch; `options` are those of a DataLoader.

        Samples are shuffled unless `options` say `shuffle=False` or hold a sampler, or the data set is an
        IterableDataset. It may be made before the loop or in it, and read any number of times. If the trial is asked to
        pause, it does so between two batches; the epoch then starts again. Raises TrialError for a generator.
        """
        refuse_own_generator(options)
        self._loaders += 1
        made = (self.epoch if self._begun else 0, self._loaders)
        # a DataLoader refuses a batch size beside a batch_sampler, so the default is left out; one of the user's stays
        unsized = options.get("batch_sampler") is not None and batch_size == BATCH
        given = {"worker_init_fn": seed_worker, **({} if unsized else {"batch_size": batch_size}), **options}
        return Batches(self, made, lambda order: keyed_loader(dataset, order, given))

    def split(self, dataset: Dataset[Any], share: float) -> tuple[Subset[Any], Subset[Any]]:
        """Return a data set without and with a keyed `share` of its samples: (training part, validation part)."""
        count = len(dataset)  # type: ignore[arg-type]
        held_out = round(share * count)
        if not 0 < held_out < count:
            raise TrialError(f"run.split: a share of {share:g} of {count:,} samples leaves one part empty")
        order = self._stream("split").permutation(count).tolist()
        return Subset(dataset, order[held_out:]), Subset(dataset, order[:held_out])

    def build(self, cls: Callable[..., M], *arguments: Any, **named: Any) -> M:
        """Return `cls(*arguments, **named)` on the run's device; each weight is drawn from a stream keyed by its path.

        Two networks that share a module at the same path thus start with the same weights in it, whatever else
        differs. Then the parts that the study file names in `replace` are replaced, in the first network that is built.
        The number of trainable parameters becomes the metric `params`. Raises TrialError if `cls` is a network already.
        """
        if isinstance(cls, nn.Module):
            raise TrialError("run.build takes a class and its arguments, as run.build(Net, width=8), not a network")
        self._built += 1
        module = self.construct(lambda: cls(*arguments, **named))
        if self._built == 1 and self._replace:
            number_of = partial(self._number, "part")
            self.replacements = [replace_parts(module, self._replace, number_of=number_of)]
        self.params = (self.params or 0) + count_parameters(module)
        return module.to(self.device)

    def construct(self, make: Callable[[], M]) -> M:
        """Return `make()` with each weight keyed by its path, or without values on torch's device `meta`."""
        if self.device.type == "meta":
            with torch.device("meta"):
                return make()
        return build_keyed(make, lambda path: self._number("initialisation", self._built, path))

    def check_parts(self) -> None:
        """Raise TrialError if a part that the study file replaces is not, in what the function has trained so far."""
        if self._replace and not self.replacements:
            paths = ", ".join(self._replace)
            raise TrialError(f"replace: {paths}: the function builds no network by run.build, so nothing was replaced")
        check_parts(self.replacements)

    def pause_if_asked(self) -> None:
        """Pause here if the trial is to pause; what was trained since the last report is trained again.

        The exception that does so is no Exception, and is raised again if the function catches it.
        """
        if self.reporter is not None:
            self.reporter.check()
        if not self.stays and self._pause():
            reason = f"seed {self.seed} has paused in epoch {self.epoch}"
            raise TrialPausedError(reason) if self.reporter is None else self.reporter.end(TrialPausedError, reason)

    def _refuse_changes_after_report(self) -> None:
        """Raise TrialError if code after the first `yield` changed what is kept: a restarted trial would skip it."""
        before, self.reported = self.reported, None
        if before is None:
            return
        now = self.state()
        same = now.states == before.states and all(
            same_bits(tensor, now.tensors[path]) for path, tensor in before.tensors.items() if path in now.tensors
        )
        if not same:
            raise TrialError(
                "the code after `yield` changes what run.keep keeps: move it before `yield`, because a trial that"
                " continues from its checkpoint would skip it"
            )

    def state(self) -> Kept:
        """Return the state of now, for a checkpoint."""
        found = {name: get_state(name, thing) for name, thing in self.kept.items()}
        tensors = {path: tensor for _, named in found.values() for path, tensor in named.items()}
        states = {name: state for name, (state, _) in found.items()}
        streams = {name: generator.bit_generator.state for name, generator in self._streams.items()}
        return Kept(epoch=self.epoch, states=states, tensors=tensors, streams=streams)

    def seed_globals(self, purpose: str, *path: str | int) -> None:
        """Seed the global generators of Python, NumPy and torch by this seed and a purpose."""
        seed_globals(self._number(purpose, *path))

    def _restore_stream(self, name: str) -> None:
        if self._found is not None and self._found.states and name in self._found.streams:
            self._streams[name].bit_generator.state = self._found.streams[name]

    def _number(self, purpose: str, *path: str | int) -> int:
        return int(self._stream(purpose, *path).integers(2**63))

    def _stream(self, purpose: str, *path: str | int) -> np.random.Generator:
        return stream(self._study_seed, self.dataset, self.seed, purpose, *path)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)))
