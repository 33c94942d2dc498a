"""The processes that train one trial together: each knows its rank, and they meet before the code of the user runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

MEETING = timedelta(seconds=300)  # for the slowest process to import the user's module


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of this process among the `world` that train together; 0 of 1 for one that trains alone."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def here() -> Ranks:
        """Return the rank of this process, which the border has put into its environment."""
        return Ranks(rank=int(os.environ.get("RANK", "0")), world=int(os.environ.get("WORLD_SIZE", "1")))

    def words(self) -> str:
        """Return what names this rank before a message; nothing for a single process."""
        return f"rank {self.rank} of {self.world}: " if self.world > 1 else ""

    def device(self, device: str) -> str:
        """Return the device of this rank: each has a GPU of its own."""
        return f"cuda:{self.rank}" if self.world > 1 and device == "cuda" else device

    def meet(self, device: str) -> None:
        """Make torch.distributed's default group: NCCL on GPUs, Gloo on a CPU; nothing for a single process.

        Calls of `init_process_group` and `destroy_process_group` by the user's code then do nothing: the group lives as
        long as the processes, and the seeds of a trial share it.
        """
        if self.world == 1:
            return
        import torch
        from torch import distributed

        if distributed.is_initialized():
            return
        if device.startswith("cuda"):
            torch.cuda.set_device(self.rank)
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=MEETING)
        distributed.init_process_group = distributed.destroy_process_group = _nothing

    def told_by_first(self, value: int | None) -> int | None:
        """Return what the first rank says, which decides for all."""
        if self.world == 1:
            return value
        from torch import distributed

        said = [value]
        distributed.broadcast_object_list(said, src=0)
        return said[0]


ALONE = Ranks()


def _nothing(*_: Any, **__: Any) -> None:
    """Leave the group as it is."""
