"""What a trained network writes, translates and attends to, against loops of one's own and the tools of the field."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from ablate.base.errors import RequestError
from ablate.driver.options import RunOptions
from ablate.driver.run import search
from ablate.engine.tasks import data_folder
from ablate.results.report.attention_maps import BlockMaps, write_maps
from ablate.results.trials.tables import trials_table
from ablate.studies.network import (
    attention_maps,
    continue_texts,
    load_network,
    translate,
    write_translations,
)
from ablate.studies.stored import read_study
from support.commands import refused, succeed
from support.paths import REPOSITORY

NUMBERS = """\
study: words
protocol: paper
datasets: {words: {task: numbers, length: 16, share: 0.02}}
model: {width: 16, depth: 2, heads: 2, mlp: none}
training: {epochs: 1, batch_size: 32, learning_rate: 1e-2}
variants:
  - {name: QKV}
  - {name: KV, model: {similarity: shared}}
  - {name: K+Pos, model: {similarity: shared, value: key, pair_position: 4}}
replicates: 2
compare: {baseline: QKV}
"""
MULTI30K = """\
study: pairs
datasets: {de_en: {task: multi30k_de_en, share: 0.004}}
model: {width: 16, depth: 1, mlp: 16}
training: {epochs: 1, batch_size: 32, learning_rate: 1e-2}
variants: [{name: QKV}]
objectives: [{metric: val_bleu, direction: maximize}]
compare: {baseline: QKV, metrics: [val_bleu]}
"""


def driven(text: str, home: Path, data_dir: Path | None = None) -> RunOptions:
    file = home / "study.yaml"
    file.write_text(text)
    settings = RunOptions(runs_dir=home / "runs", executor="local", tracker="none", data_dir=data_dir)
    search(file, settings, Console(quiet=True))
    return settings


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> RunOptions:
    return driven(NUMBERS, tmp_path_factory.mktemp("words"))


@pytest.mark.services
def test_the_likeliest_text_is_that_of_a_plain_loop(words: RunOptions) -> None:
    asked = load_network("words", words, number=1, replicate=1)
    ids = asked.task.encode("two . three", None)
    for _ in range(40):  # longer than the context of 16
        ids.append(int(asked.module(torch.tensor([ids[-16:]]))[0, -1].argmax()))
    assert continue_texts(asked, "two . three", length=40, temperature=0, seed=0) == asked.task.decode(ids, None)


def test_draws_are_keyed_and_follow_the_scores(words: RunOptions) -> None:
    asked = load_network("words", words, number=0)
    texts = [continue_texts(asked, None, length=30, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    cold = continue_texts(asked, "one", length=30, temperature=1e-6, seed=5)
    assert cold == continue_texts(asked, "one", length=30, temperature=0, seed=0)


@pytest.mark.services
def test_symmetric_similarities_are_symmetric_in_what_is_exported(words: RunOptions, tmp_path: Path) -> None:
    expected = {0: False, 1: True, 2: False}  # QKV, KV, K+Pos
    for number, symmetric in expected.items():
        blocks = attention_maps(load_network("words", words, number=number), 3)
        paths = write_maps(blocks, tmp_path / str(number), title="words")
        assert [path.name for path in paths] == ["block-1.png", "block-2.png", "maps.npz"]
        assert all(path.stat().st_size > 1000 for path in paths)
        saved = np.load(paths[-1], allow_pickle=False)
        for name in ("block-1", "block-2"):
            s, weights = saved[f"{name}/similarity"], saved[f"{name}/weights"]
            assert s.shape == weights.shape == (2, 16, 16)
            assert np.allclose(s, s.swapaxes(1, 2), atol=1e-5) == symmetric
            assert np.allclose(weights.sum(-1), 1.0, atol=1e-5)
            assert (np.triu(weights, 1) == 0).all()  # nothing looks ahead
            seen = np.where(np.tril(np.ones((16, 16))) > 0, s, -np.inf)
            softmax = np.exp(seen - seen.max(-1, keepdims=True))
            assert np.allclose(weights, softmax / softmax.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.services
def test_a_long_title_is_broken_into_lines_above_the_maps(tmp_path: Path) -> None:
    block = BlockMaps(name="block-1", similarity=np.eye(4)[None], weights=np.full((1, 4, 4), 0.25))
    sizes = []
    for title in ("short", "a study whose name and variant are wider than the one head of its network, by far"):
        path = write_maps([block], tmp_path, title=title)[0]
        sizes.append(np.frombuffer(path.read_bytes()[16:24], dtype=">u4"))  # a PNG's width and height
    (width, height), (same, taller) = sizes
    assert same == width
    assert taller > height


def test_the_trial_that_leads_on_the_first_objective_is_asked_unless_another_is_named(words: RunOptions) -> None:
    table = trials_table(read_study("words", words).snapshot)
    assert table["val_accuracy"].n_unique() == 3
    assert load_network("words", words).config.key.number == table["trial"][int(table["val_accuracy"].arg_max() or 0)]
    assert load_network("words", words, number=2).config.variant == "K+Pos"


def test_what_cannot_be_asked_is_refused_in_one_line(words: RunOptions) -> None:
    with pytest.raises(RequestError, match=r"trial 9 of study 'words': there is no such trial"):
        load_network("words", words, number=9)
    with pytest.raises(RequestError, match=r"no data set 'word'\. Did you mean 'words'"):
        load_network("words", words, dataset="word")
    asked = load_network("words", words)
    with pytest.raises(RequestError, match=r"task numbers is not a translation"):
        translate(asked, ["one"])
    with pytest.raises(RequestError, match=r"no training sample 1000000"):
        attention_maps(asked, 1_000_000)
    with pytest.raises(RequestError, match=r"'blue'"):
        continue_texts(asked, "blue", length=1, temperature=1.0, seed=0)


@pytest.mark.services
def test_the_commands_print_text_and_write_pictures(words: RunOptions, capfd: pytest.CaptureFixture[str]) -> None:
    place = ("--runs-dir", str(words.runs_dir))
    out = succeed(capfd, "sample", "words", "--trial", "0", "--length", "12", "--prompt", "one", *place)
    assert len(load_network("words", words).task.encode(out, None)) == 13
    files = [Path(line) for line in succeed(capfd, "maps", "words", "--trial", "1", "--sample", "2", *place).split()]
    assert [f.name for f in files] == ["block-1.png", "block-2.png", "maps.npz"]
    assert all(f.is_file() for f in files)
    assert "Did you mean 'words'" in refused(capfd, "sample", "wrods", *place)


@pytest.mark.services
def test_bleu_is_that_of_sacrebleus_own_command_and_of_the_report(tmp_path: Path) -> None:
    shared = Path(os.environ.get("ABLATE_DATA") or REPOSITORY.parent / "shared" / "data")
    if not (data_folder(shared) / "multi30k" / "train.de").is_file():
        pytest.skip("Multi30k is not here (../shared/data or ABLATE_DATA)")
    settings = driven(MULTI30K, tmp_path, shared)
    asked = load_network("pairs", settings)
    written = write_translations(asked, "validation", tmp_path / "out")
    command = [sys.executable, "-m", "sacrebleu", str(written.references), "-i", str(written.hypotheses)]
    printed = subprocess.run([*command, "-b", "-w", "10"], capture_output=True, text=True, check=True).stdout
    assert float(printed) == pytest.approx(written.bleu, abs=1e-9)
    lines = written.hypotheses.read_text().splitlines()
    assert len(lines) == written.sentences == round(0.004 * 1014)
    published = (data_folder(shared) / "multi30k" / "val.en").read_text(encoding="utf-8").split("\n")
    assert written.references.read_text().splitlines() == [published[i * 1014 // 4] for i in range(4)]
    table = trials_table(read_study("pairs", settings).snapshot)  # the second trial reads the first on the test split
    reported, repeated = table["val_bleu"]
    assert repeated == reported
    tests = write_translations(load_network("pairs", settings, number=1), "test", tmp_path / "test")
    assert tests.bleu == pytest.approx(table["test_bleu"][1], abs=1e-9)
    assert written.bleu == pytest.approx(reported, abs=1e-9)
    assert reported > 0
    assert translate(asked, ["Ein Mann."])[0] != ""
