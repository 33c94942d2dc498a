"""Inspects a trained network: the text that it generates, and its attention maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ablate.base.errors import AblateError, RequestError
from ablate.base.files import DiskFolder, refuse_links
from ablate.base.randomness import stream
from ablate.base.redaction import error_text
from ablate.core.trial import TrialConfig, checkpoint_folder
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data, Task, load_task
from ablate.engine.tasks.base import Written
from ablate.engine.tasks.text.bleu import bleu
from ablate.engine.tasks.text.translation import Translation
from ablate.engine.training import predictor
from ablate.functions.code.changes import USE, refuse_other_code
from ablate.results.report.attention_maps import BlockMaps
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.studies.stored import read_study, trial_of

BATCH = 128  # texts that are decoded at once


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One replicate of a trained trial, ready for inference."""

    config: TrialConfig
    replicate: int
    task: Task
    shape: InputShape
    module: Any  # an nn.Module with more methods
    data_dir: Path | None

    def title(self) -> str:
        """Return a short title: trial, variant, replicate and seed."""
        variant = f", {self.config.variant}" if self.config.variant else ""
        seed = self.config.seeds[self.replicate]
        return f"{self.config.key}{variant}, replicate {self.replicate} (seed {seed})"


def load_network(
    study: str, locations: Locations, *, number: int | None = None, dataset: str | None = None, replicate: int = 0
) -> Trained:
    """Return a trial of `study` with its trained weights; without `number`, the best on the first objective.

    Raises RequestError if there is no such trial or replicate, CheckpointError if its weights are missing.
    """
    found = read_study(study, locations)
    config = trial_of(found, number, dataset).config.origin
    refuse_links(locations.home(study))
    refuse_other_code(found.study, found.snapshot.events, advice=USE)
    locations = with_store(locations, found.record)
    task = load_task(config.task)
    module = predictor(config, checkpoint_folder(locations.checkpoint_root(study), config.key), replicate)
    return Trained(
        config=config,
        replicate=replicate,
        task=task,
        shape=task.shape(locations.data_dir),
        module=module,
        data_dir=locations.data_dir,
    )


def continue_texts(asked: Trained, prompt: str | None, *, length: int, temperature: float, seed: int) -> str:
    """Return `prompt` and `length` further tokens, each drawn by softmax of the scores divided by `temperature`.

    A temperature of 0 takes the likeliest token. Raises RequestError for a task that does not write one token at a
    time.
    """
    if not isinstance(asked.task, Written) or not asked.shape.causal:
        raise RequestError(f"task {asked.config.task.task} does not write text token by token, so nothing can be drawn")
    ids = asked.task.encode(asked.task.opening if prompt is None else prompt, asked.data_dir)
    if not ids:
        raise RequestError("the prompt is empty; give at least one token to begin with")
    draws = stream(seed, asked.config.key.dataset, asked.config.seeds[asked.replicate], "sample").random(length)
    with torch.no_grad():
        for draw in draws:
            scores = asked.module(torch.tensor([ids[-asked.shape.tokens :]]))[0, -1].double()
            ids.append(_draw(scores, temperature, float(draw)))
    return asked.task.decode(ids, asked.data_dir)


def translate(asked: Trained, sentences: Sequence[str]) -> list[str]:
    """Return the translation of each sentence, by greedy decoding; raise RequestError for another kind of task."""
    if not isinstance(asked.task, Translation):
        raise RequestError(f"task {asked.config.task.task} is not a translation")
    if not sentences:
        raise RequestError('what shall be translated? Type --prompt "Ein Satz." or --split validation')
    data = asked.task.load(asked.data_dir)
    pad, found = data.pad or 0, list[str]()
    for begin in range(0, len(sentences), BATCH):
        ids = [
            asked.task.encode(s, asked.data_dir)[: asked.shape.source_tokens] for s in sentences[begin : begin + BATCH]
        ]
        source = torch.full((len(ids), max(map(len, ids), default=1)), pad)
        for row, sentence in enumerate(ids):
            source[row, : len(sentence)] = torch.tensor(sentence)
        found.extend(asked.task.decode(row, asked.data_dir) for row in _greedy(asked, data, source).tolist())
    return found


@dataclass(frozen=True, kw_only=True)
class Translations:
    """The translation of a split: two files with the same number of lines, and their BLEU."""

    hypotheses: Path
    references: Path
    sentences: int
    bleu: float


def write_translations(asked: Trained, part: Literal["validation", "test"], folder: Path) -> Translations:
    """Translate `part` and write hypotheses and references into `folder`, in the format of sacrebleu's command.

    Raises RequestError for another kind of task, AblateError if the folder cannot be written.
    """
    task = asked.task
    if not isinstance(task, Translation):
        raise RequestError(f"task {asked.config.task.task} is not a translation")
    data = task.load(asked.data_dir)

    def decode(source: Tensor) -> Tensor:
        rows = [_greedy(asked, data, part_of) for part_of in torch.split(source.long(), BATCH)]
        longest = max(ids.shape[1] for ids in rows)
        fill = data.pad or 0
        return torch.cat([torch.nn.functional.pad(ids, (0, longest - ids.shape[1]), value=fill) for ids in rows])[None]

    hypotheses = task.hypotheses(decode, asked.data_dir, part)[0]
    references = task.references(asked.data_dir, part)
    paths = folder / f"{part}.hypotheses", folder / f"{part}.references"
    try:
        for path, lines in zip(paths, (hypotheses, references), strict=True):
            DiskFolder(folder).write(path.name, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise AblateError(f"{folder}: the translations cannot be written: {error_text(error, folder)}") from error
    return Translations(
        hypotheses=paths[0], references=paths[1], sentences=len(references), bleu=bleu([hypotheses], references)[0]
    )


def _greedy(asked: Trained, data: Data, source: Tensor) -> Tensor:
    ids: Tensor = asked.module.greedy(source, start=data.start, end=data.end, steps=asked.shape.tokens)
    return ids


def attention_maps(asked: Trained, sample: int) -> list[BlockMaps]:
    """Return similarity and attention weights of every block on training sample number `sample`.

    For an encoder-decoder, these are the encoder's. Raises RequestError if there is no such sample.
    """
    data = asked.task.load(asked.data_dir)
    if not 0 <= sample < len(data.train_targets):
        raise RequestError(f"there is no training sample {sample}, only 0 to {len(data.train_targets) - 1:,}")
    x = _input(data, sample)
    with torch.no_grad():
        similarities = asked.module.similarities(x)
        _, weights = asked.module(x, return_weights=True)
    pairs = zip(similarities, weights[: len(similarities)], strict=True)
    return [
        BlockMaps(name=f"block-{i}", similarity=s[0].double().numpy(), weights=w[0].double().numpy())
        for i, (s, w) in enumerate(pairs, start=1)
    ]


def _input(data: Data, sample: int) -> Tensor | tuple[Tensor, Tensor]:
    """Return one training sample as the network reads it, [1, ...]; texts without their padding."""
    if isinstance(data.train_inputs, Tensor):
        inputs = data.train_inputs[sample : sample + 1]
    else:
        inputs = next(data.train_inputs.batches(torch.tensor([[sample]]), 1, None))[0]
    if data.start is None:
        return data.tokens(inputs)
    source = data.tokens(inputs)
    return source[:, : int(torch.count_nonzero(source[0] != (data.pad or 0)))], torch.full((1, 1), data.start)


def _draw(scores: Tensor, temperature: float, uniform: float) -> int:
    if temperature == 0:
        return int(scores.argmax())
    shares = torch.softmax(scores / temperature, dim=-1).cumsum(-1)
    return int(torch.searchsorted(shares, uniform * float(shares[-1])).clamp(max=len(scores) - 1))
