"""Multi30k, German and English, in files `multi30k/{train,val,test_2016_flickr}.{de,en}` (paper B, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError, RequestError
from ablate.core.config import TaskConfig
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Data, shared_part
from ablate.engine.tasks.folders import data_folder, unusable
from ablate.engine.tasks.text.bleu import bleu
from ablate.engine.tasks.text.corpus import Corpus, TextSize, file_fault, read_corpus
from ablate.engine.tasks.text.smoothing import smoothed_divergence
from ablate.engine.tasks.text.tokens import TokenPrediction
from ablate.engine.tasks.text.vocabulary import END, PAD, START, tokenise

FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
SENTENCES = {"train": 29_000, "validation": 1_014, "test": 1_000}
PUBLISHED = {"de": TextSize(ids=8_018, longest=44), "en": TextSize(ids=6_228, longest=40)}


@dataclass(frozen=True, kw_only=True)
class SentencePairs(Data):
    """Source and target sentences as ids, and their data folder."""

    folder: Path


class Translation(TokenPrediction):
    """Captions of photographs in two languages, aligned (Elliott et al. 2016; task 1 of WMT 2016 multimodal)."""

    corpus_names = ("bleu",)
    opening = ""

    pad = PAD

    def __init__(self, config: TaskConfig, source: str, target: str) -> None:
        self.config = config
        self.source = source
        self.target = target

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape from the files if they are complete, otherwise from the published sizes."""
        usable = not self._faults(data_dir)
        source, target = (
            self._corpus(data_dir, language).size if usable else PUBLISHED[language]
            for language in (self.source, self.target)
        )
        return InputShape(
            tokens=target.longest + 1,  # a sentence after `start`, or before `end`
            features=target.ids,
            outputs=target.ids,
            train_samples=SENTENCES["train"],
            inputs="ids",
            output="token",
            causal=True,
            source_tokens=source.longest,
            source_features=source.ids,
            pad=PAD,
            ships_validation=True,
        )

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError if a file is missing or has another number of lines."""
        faults = self._faults(data_dir)
        if faults:
            remedy = (
                "It has no lasting address: put train, val and test_2016_flickr, each as .de and .en (task 1, raw text,"
                f" of github.com/multi30k/dataset), into {self.location(data_dir)}"
            )
            raise unusable(self.config.task, data_dir, faults, remedy=remedy)

    def load(self, data_dir: Path | None) -> SentencePairs:
        """Return the three parts as int16 ids: sources, and targets with `end`, padded with `pad`."""
        self.check(data_dir)
        source, target = self._corpus(data_dir, self.source), self._corpus(data_dir, self.target)
        inputs = {part: _pad(source.ids[part], source.size.longest) for part in FILES}
        ended = {part: [[*ids, END] for ids in target.ids[part]] for part in FILES}
        targets = {part: _pad(ended[part], target.size.longest + 1) for part in FILES}
        return SentencePairs(
            train_inputs=inputs["train"],
            train_targets=targets["train"],
            test_inputs=inputs["test"],
            test_targets=targets["test"],
            validation_inputs=inputs["validation"],
            validation_targets=targets["validation"],
            ids=True,
            pad=PAD,
            start=START,
            end=END,
            folder=data_folder(data_dir),
        )

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor = 0.0) -> Tensor:
        """Return the KL divergence from smoothed targets in nats, [*R, B, T]; 0 at padding (see smoothing.py)."""
        return smoothed_divergence(logits, targets, label_smoothing, pad=PAD)

    def corpus_metrics(self, decode: Callable[[Tensor], Tensor], data: Data, part: str) -> dict[str, list[float]]:
        """Return `bleu` of each replicate over the samples of `part` that `data` holds, 0 to 100 (see bleu.py).

        References are the unchanged lines of the file. Raises DataError if `data` is not of this task.
        """
        inputs = data.validation_inputs if part == "validation" else data.test_inputs
        if not isinstance(data, SentencePairs) or not isinstance(inputs, Tensor):
            raise DataError(f"task {self.config.task}: {part} data are {type(data).__name__}, which it did not load")
        references = self._lines_of(inputs, data.folder, part)
        return {"bleu": bleu(self._texts(decode(inputs), data.folder), references)}

    def hypotheses(self, decode: Callable[[Tensor], Tensor], data_dir: Path | None, part: str) -> list[list[str]]:
        """Return the texts that each replicate generates for `part` (`validation` or `test`), one per reference."""
        data = self.load(data_dir)
        inputs = data.validation_inputs if part == "validation" else data.test_inputs
        assert isinstance(inputs, Tensor)
        return self._texts(decode(inputs[shared_part(len(inputs), self.config.share)]), data_dir)

    def references(self, data_dir: Path | None, part: str) -> list[str]:
        """Return the unchanged target lines of `part`, limited to the `share` that is used."""
        self.check(data_dir)
        lines = self._corpus(data_dir, self.target).lines[part]
        return [lines[i] for i in shared_part(len(lines), self.config.share).tolist()]

    def encode(self, text: str, data_dir: Path | None) -> list[int]:
        """Return the source ids of a sentence, unknown words included; raise RequestError if there is no word."""
        self.check(data_dir)
        ids = self._corpus(data_dir, self.source).vocabulary.encode(tokenise(text))
        if not ids:
            raise RequestError(f"{self.config.task}: there is no word in {text!r}")
        return ids

    def decode(self, ids: Sequence[int], data_dir: Path | None) -> str:
        """Return the target sentence of `ids` up to `end`; an unknown word is written ⁇."""
        self.check(data_dir)
        return self._corpus(data_dir, self.target).vocabulary.decode(ids)

    def location(self, data_dir: Path | None) -> Path:
        """Return the folder."""
        return data_folder(data_dir) / "multi30k"

    def fetch(self, data_dir: Path | None) -> Path:
        """Return the folder if it is complete; otherwise raise DataError that says which files to put there."""
        self.check(data_dir)
        return self.location(data_dir)

    def _file(self, data_dir: Path | None, part: str, language: str) -> Path:
        return self.location(data_dir) / f"{FILES[part]}.{language}"

    def _corpus(self, data_dir: Path | None, language: str) -> Corpus:
        return read_corpus({part: self._file(data_dir, part, language) for part in FILES})

    def _faults(self, data_dir: Path | None) -> dict[Path, str]:
        files = {self._file(data_dir, part, lang): n for lang in PUBLISHED for part, n in SENTENCES.items()}
        found = {path: file_fault(path, sentences) for path, sentences in files.items()}
        return {path: fault for path, fault in found.items() if fault}

    def _texts(self, ids: Tensor, data_dir: Path | None) -> list[list[str]]:
        vocabulary = self._corpus(data_dir, self.target).vocabulary
        return [[vocabulary.decode(text) for text in texts] for texts in ids.tolist()]

    def _lines_of(self, inputs: Tensor, folder: Path, part: str) -> list[str]:
        """Return the target lines of the sentences `inputs`, which under `protocol: paper` are of the test part."""
        source, target = self._corpus(folder, self.source), self._corpus(folder, self.target)
        for name in ("validation", "test"):
            whole = _pad(source.ids[name], source.size.longest)
            for index in (torch.arange(len(whole)), shared_part(len(whole), self.config.share)):
                if torch.equal(whole[index], inputs.to("cpu", whole.dtype)):
                    return [target.lines[name][i] for i in index.tolist()]
        raise DataError(f"task {self.config.task}: the {part} data are not those of {self.location(folder)}")


def _pad(sentences: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return ids padded with `PAD`, int16 [n, length]; no vocabulary here has more than 2^15 words."""
    filled = [[*ids, *[PAD] * (length - len(ids))] for ids in sentences]
    return torch.from_numpy(np.array(filled, dtype=np.int16))


build_de_en = partial(Translation, source="de", target="en")


build_en_de = partial(Translation, source="en", target="de")
