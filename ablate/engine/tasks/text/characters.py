"""Tiny Shakespeare, character by character (paper B, section 4.3): one file, `tinyshakespeare/input.txt`."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ablate.base.errors import DataError, RequestError
from ablate.base.files import DiskFolder
from ablate.engine.tasks.archives import SILENCE_SECONDS
from ablate.engine.tasks.base import Data
from ablate.engine.tasks.folders import data_folder, not_downloaded, unreadable, unusable
from ablate.engine.tasks.task_config import SequenceConfig
from ablate.engine.tasks.text.tokens import TextWindows, text_data

NAME = "tiny_shakespeare"
ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
CHARACTERS = 1_115_394
TRAIN_CHARACTERS = int(0.9 * CHARACTERS)
SYMBOLS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IDS = {symbol: i for i, symbol in enumerate(SYMBOLS)}
LENGTH = 64  # the longest of the paper's 8, 32 and 64


class Characters(TextWindows):
    """Speeches of Shakespeare (Karpathy 2015, char-rnn): the first 90% for training, the rest for test."""

    opening = "\n"

    def __init__(self, config: SequenceConfig) -> None:
        test = CHARACTERS - TRAIN_CHARACTERS
        super().__init__(config, LENGTH, symbols=len(SYMBOLS), train=TRAIN_CHARACTERS, test=test)

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError if the file is missing or not the published one."""
        _check_text(self.location(data_dir), data_dir)

    def load(self, data_dir: Path | None) -> Data:
        """Return every window of the train part, and windows of the test part that do not overlap; uint8 [n, T]."""
        content = _check_text(self.location(data_dir), data_dir)
        table = np.zeros(256, dtype=np.uint8)
        table[list(SYMBOLS.encode())] = range(len(SYMBOLS))
        ids = torch.from_numpy(table[np.frombuffer(content, dtype=np.uint8)])
        return text_data(ids[:TRAIN_CHARACTERS], ids[TRAIN_CHARACTERS:], self.length)

    def location(self, data_dir: Path | None) -> Path:
        """Return the file."""
        return data_folder(data_dir) / "tinyshakespeare" / "input.txt"

    def fetch(self, data_dir: Path | None) -> Path:
        """Download the file if it is missing or damaged; raise DataError if the network or the folder fails."""
        path = self.location(data_dir)
        try:
            if path.is_file() and not _fault(path.read_bytes()):
                return path
            _download(path)
        except (OSError, http.client.HTTPException) as error:
            raise not_downloaded(f"{NAME} from {ADDRESS} to {path}", NAME, data_dir, error) from error
        return path

    def encode(self, text: str, data_dir: Path | None) -> list[int]:
        """Return the ids of characters; raise RequestError if one is not among the 65."""
        for character in text:
            if character not in IDS:
                raise RequestError(f"{NAME}: the character {character!r} is not known. Known: {SYMBOLS!r}")
        return [IDS[character] for character in text]

    def decode(self, ids: Sequence[int], data_dir: Path | None) -> str:
        """Return the characters."""
        return "".join(SYMBOLS[i] for i in ids)


def _check_text(path: Path, data_dir: Path | None) -> bytes:
    try:
        content = path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise unreadable(NAME, data_dir, error) from error
    fault = "missing" if content is None else _fault(content)
    if content is None or fault:
        raise unusable(NAME, data_dir, {path: fault})
    return content


def _fault(content: bytes) -> str:
    """Return how `content` differs from the published file; empty if it does not."""
    if len(content) != CHARACTERS:
        return f"{len(content):,} bytes, not {CHARACTERS:,}"
    return "" if hashlib.sha256(content).hexdigest() == SHA256 else "its SHA-256 sum is not the published one"


def _download(path: Path) -> None:
    with urllib.request.urlopen(ADDRESS, timeout=SILENCE_SECONDS) as response:
        content = response.read(CHARACTERS + 1)
    fault = _fault(content)
    if fault:
        raise DataError(f"{ADDRESS} no longer holds {NAME}: {fault}; nothing was written. Copy {path} from elsewhere")
    DiskFolder(path.parent).write(path.name, content)


build = Characters
