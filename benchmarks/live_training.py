"""Trains configurations for the searches that benchmarks/live_search.py compares with `ablate search`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialConfig, TrialKey
from ablate.functions.memory import keep_freed_memory
from ablate.study.file import read_study

STUDY, REPORTS = "study.yaml", "reports.jsonl"


class Training:
    """Trains as a worker of `ablate` does, on one thread, and adds a line to FOLDER/reports.jsonl after each epoch.

    The study file is FOLDER/study.yaml. The seeds, and with them split and initial weights, are those of the study.
    """

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self.study, _ = read_study(folder / STUDY)
        self.space = self.study.space_for(self.study.labels[0])
        self._trainable, self._file, self._count = load_trainable(self.study.trainable), folder / REPORTS, 0

    def epochs(self, chosen: Mapping[str, Any]) -> Iterator[tuple[float, int]]:
        """Yield validation accuracy and parameters after each epoch; settings that are not active are ignored."""
        label = self.study.labels[0]
        settings, task = self.study.settings_of(label, self.active(chosen)), self.study.task(label)
        [size] = self._trainable.measure([settings], self._trainable.find_facts(task, None))
        self._count += 1
        config = TrialConfig(
            key=TrialKey(study="live", dataset=label, number=self._count),
            stage="search",
            settings=settings,
            task=task,
            seeds=self.study.seeds_of(None),
            study_seed=self.study.seed,
        )
        where = {"data_dir": None, "checkpoints": None, "device": "cpu", "attempt": 1, "pause": lambda: False}
        for report in self._trainable.train(config, **where):  # type: ignore[arg-type]
            accuracy = report.mean("val_accuracy")
            self._record(report.epoch, accuracy, size.params)
            yield accuracy, size.params

    def active(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings whose condition in the study file holds."""
        found: dict[str, Any] = {}
        for name in self.space.ranges:
            if self.space.is_active(name, found):
                found[name] = chosen[name]
        return found

    def _record(self, epoch: int, accuracy: float, params: int) -> None:
        line = {"trial": f"{os.getpid()}-{self._count}", "epoch": epoch, "moment": time.time()}
        with self._file.open("a") as out:
            out.write(json.dumps({**line, "val_accuracy": accuracy, "params": params}) + "\n")
