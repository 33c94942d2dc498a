"""What a training function is given: one seed of one trial, with its epochs, random streams and checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from ablate.errors import PausedError, TrialError
from ablate.functions.keeping import GlobalRandomness, check_keepable, get_state, set_state
from ablate.models.keyed import build_keyed, count_parameters
from ablate.models.parts.replacing import replace_parts
from ablate.models.parts.watching import Replacements, check_parts
from ablate.randomness import stream

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The state of one seed at a checkpoint: epochs done, the kept objects, and the streams."""

    epoch: int
    states: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    streams: Mapping[str, Any] = field(default_factory=dict)  # states of the generators of `Run.stream`


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
    ) -> None:
        self.seed, self.dataset, self.stage, self.device = seed, dataset, stage, torch.device(device)
        self.length = length
        self.params: int | None = None
        self.kept: dict[str, Any] = {}
        self.epoch = 0
        self._replace = replace or {}
        self._study_seed, self._pause, self._found = study_seed, pause, found
        self._begun = False
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

    def keep(self, **objects: Any) -> None:
        """Say what a checkpoint holds; objects that a checkpoint holds are set to that state here.

        An object has state_dict and load_state_dict, or save(folder) and load(folder). Raises TrialError for any other
        one, and after the first epoch has begun.
        """
        if self._begun:
            raise TrialError("run.keep was called after run.epochs() had begun: call it before the loop")
        for name, thing in objects.items():
            if name in self.kept:
                raise TrialError(f"run.keep({name}=...) was called twice")
            check_keepable(name, thing)
            self.kept[name] = thing
            if self._found is not None and name in self._found.states:
                set_state(name, thing, self._found.states[name], self._found.tensors)
                self.epoch = self._found.epoch

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, from 1; each begins with keyed global generators.

        Seeded are Python's, NumPy's and torch's. A function that keeps nothing begins with epoch 1 again after a
        restart. Raises TrialError if a checkpoint holds an object that is not kept any more, or the reverse.
        """
        self._begun = True
        for name in self._streams:
            self._restore_stream(name)
        if self._found is not None and self.kept:
            differing = ", ".join(sorted(self._found.states.keys() ^ self.kept.keys()))
            if differing:
                raise TrialError(f"run.keep: the checkpoint and the function do not keep the same objects: {differing}")
        for epoch in range(self.epoch + 1, self.length + 1):
            self._refuse_changes_after_report()
            self.pause_if_asked()
            self.epoch, self._loaders = epoch, 0
            self.seed_globals("epoch", epoch)
            yield epoch

    def loader(self, dataset: Dataset[Any], batch_size: int = 64, *, shuffle: bool = True, **options: Any) -> Batches:
        """Return batches of a torch Dataset in an order keyed by the epoch; `options` are those of a DataLoader.

        It may be made before the loop or in it, and read any number of times. If the trial is asked to pause, it does
        so between two batches; the epoch then starts again.
        """
        self._loaders += 1
        made = (self.epoch if self._begun else 0, self._loaders)
        options.setdefault("worker_init_fn", _seed_worker)
        return Batches(
            self, made, lambda order: DataLoader(dataset, batch_size, shuffle=shuffle, generator=order, **options)
        )

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
        The number of trainable parameters becomes the metric `params`.
        """
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
        """Raise PausedError if the trial is to pause; what was trained since the last report is trained again."""
        if self._pause():
            raise PausedError(f"seed {self.seed} has paused in epoch {self.epoch}")

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
        GlobalRandomness.seed(self._number(purpose, *path))

    def _restore_stream(self, name: str) -> None:
        if self._found is not None and self._found.states and name in self._found.streams:
            self._streams[name].bit_generator.state = self._found.streams[name]

    def _number(self, purpose: str, *path: str | int) -> int:
        return int(self._stream(purpose, *path).integers(2**63))

    def _stream(self, purpose: str, *path: str | int) -> np.random.Generator:
        return stream(self._study_seed, self.dataset, self.seed, purpose, *path)


class Batches:
    """What `Run.loader` returns: each pass over it has another order, keyed by the epoch and the number of the pass."""

    def __init__(self, run: Run, made: tuple[int, int], make: Callable[[torch.Generator], DataLoader[Any]]) -> None:
        self._run, self._made, self._make = run, made, make
        self._epoch, self._passes = -1, 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._make(torch.Generator()))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass; raise PausedError if the trial is asked to pause."""
        run = self._run
        if self._epoch != run.epoch:
            self._epoch, self._passes = run.epoch, 0
        self._passes += 1
        order = torch.Generator()
        order.manual_seed(run._number("order", run.epoch, *self._made, self._passes))
        for batch in self._make(order):
            run.pause_if_asked()
            yield batch


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)))


def _seed_worker(worker: int) -> None:
    """Seed NumPy in a DataLoader's worker; torch seeds itself and Python there."""
    np.random.seed(torch.initial_seed() % 2**32)


def checked_metrics(value: object, run: Run) -> dict[str, float]:
    """Return what a function yielded as metrics, with `params` if a network was built; raise TrialError otherwise."""
    if not isinstance(value, Mapping) or not value:
        raise TrialError(f"the function gave {_shown(value)}: a report is a dictionary of metrics, {{name: number}}")
    found: dict[str, float] = {}
    for name, number in value.items():
        try:
            found[str(name)] = float(number)
        except (TypeError, ValueError):
            raise TrialError(f"the function gave {name}={_shown(number)}: a metric is a number") from None
    if run.params is not None:
        found.setdefault("params", float(run.params))
    return found


def checked_test(value: object, run: Run) -> dict[str, float]:
    """Return what `test` returned as metrics; raise TrialError unless they are, with names that start with `test_`."""
    found = checked_metrics(value, run)
    found.pop("params", None)
    if wrong := [name for name in found if not name.startswith("test_")]:
        raise TrialError(f"`test` returned {', '.join(wrong)}: the names of its metrics start with test_")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"
