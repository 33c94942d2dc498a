"""Files of sentences, one a line, read once per process and turned into ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ablate.base.redaction import error_text
from ablate.engine.tasks.text.vocabulary import Vocabulary, tokenise

AT_LEAST = 2  # occurrences in the train part that put a word in the vocabulary


@dataclass(frozen=True, kw_only=True)
class TextSize:
    """The sizes that a model needs to know of the sentences of one language."""

    ids: int
    """Size of the vocabulary, special ids included."""
    longest: int
    """Tokens of the longest sentence of all parts."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The sentences of one language by part, as text and as ids, and the vocabulary of the train part."""

    lines: Mapping[str, tuple[str, ...]]
    ids: Mapping[str, list[list[int]]]
    vocabulary: Vocabulary

    @cached_property
    def size(self) -> TextSize:
        """The sizes that a model needs to know."""
        longest = max(len(sentence) for part in self.ids.values() for sentence in part)
        return TextSize(ids=len(self.vocabulary), longest=longest)


def read_corpus(files: Mapping[str, Path]) -> Corpus:
    """Return the sentences of the `files` by part, `train` among them; read them again only if a file has changed."""
    return _corpus(tuple((part, path, *_stamp(path)) for part, path in files.items()))


def file_fault(path: Path, sentences: int) -> str:
    """Return the fault of a file that must have `sentences` lines: `missing`, the damage, or an empty text."""
    if not path.is_file():
        return "missing"
    try:
        lines = _lines(path, *_stamp(path))
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except OSError as error:
        return error_text(error)
    if len(lines) != sentences:
        return f"{len(lines):,} lines, not {sentences:,}"
    empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), None)
    return "" if empty is None else f"line {empty:,} is empty"


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=32)
def _lines(path: Path, size_bytes: int, changed: int) -> tuple[str, ...]:
    # Not splitlines: it would also split at separators that a sentence may contain.
    return tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))


@lru_cache(maxsize=4)
def _corpus(files: tuple[tuple[str, Path, int, int], ...]) -> Corpus:
    lines = {part: _lines(path, *stamp) for part, path, *stamp in files}
    tokens = {part: [tokenise(line) for line in sentences] for part, sentences in lines.items()}
    vocabulary = Vocabulary.of(tokens["train"], at_least=AT_LEAST)
    return Corpus(
        lines=lines,
        ids={part: [vocabulary.encode(sentence) for sentence in sentences] for part, sentences in tokens.items()},
        vocabulary=vocabulary,
    )
