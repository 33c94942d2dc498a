"""A process in which a user's code runs: it answers the requests of a `process.UserProcess`, one after another."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ablate.base.files import Place, expect_ledger
from ablate.core.trainable import TrialContext
from ablate.core.trial import TrialConfig
from ablate.functions.border.told import tell
from ablate.functions.command_seed import CommandSeed
from ablate.functions.memory import keep_freed_memory
from ablate.study.sections import Command


class Inside:
    """Each public method but `answer` is a request."""

    def __init__(self, trainable: Any, paused: mmap.mmap, line: Connection) -> None:
        self._trainable, self._paused, self._line = trainable, paused, line

    def answer(self, request: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """Return ("value", what the request returns) or ("error", what is told of its exception)."""
        try:
            return "value", getattr(self, request)(*arguments)
        except BaseException as error:  # whatever a user's code raises ends here
            return "error", tell(error)

    def call(self, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return what a method of the trainable returns."""
        return getattr(self._trainable, method)(*arguments, **options)

    def train(self, config: TrialConfig, threads: int, files: Place, context: Mapping[str, Any]) -> None:
        """Train the one seed of `config`; what is asked and answered meanwhile is in `functions.seed_messages`."""
        keep_freed_memory()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for what is imported later
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
        place: TrialContext = {**context, "pause": self._is_paused}  # type: ignore[typeddict-item]
        expect_ledger(context["checkpoints"], config.ledger)
        if isinstance(self._trainable, Command):
            CommandSeed(self._trainable, config, place, self._line).serve()
            return
        from ablate.functions.seed import Seed

        Seed(self._trainable.function, config, place, files, self._line).serve()

    def _is_paused(self) -> bool:
        return self._paused[0] == 1
