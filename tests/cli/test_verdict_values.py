"""`ablate verdict --values` of two files: the numbers of scipy and of closed forms."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.results.comparison.verdicts import p_two_sided
from ablate.studies.values import judge_files
from support.commands import run

ROWS = [("a", 0.5), ("b", 0.7), ("c", 0.6), ("d", 0.9), ("e", 0.4)]


def written(path: Path, rows: Iterable[Sequence[Any]], *names: str) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names or ("sample", "val_loss"), *rows])
    return path


def judged(folder: Path, old: Iterable[Sequence[Any]], new: Iterable[Sequence[Any]], **more: Any) -> dict[str, Any]:
    files = (written(folder / name, rows) for name, rows in (("old.csv", old), ("new.csv", new)))
    return judge_files(*files, "val_loss", **more).as_values()


def test_samples_are_tested_as_scipy_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    old, new = rng.gamma(2.0, size=40), rng.gamma(2.0, size=40) + 0.2
    numbered = [[(f"s{place}", value) for place, value in enumerate(each)] for each in (old, new)]
    found = judged(tmp_path, *numbered, margin=0.5)
    paired = stats.ttest_rel(new, old)
    assert (found["p"], found["n"], found["key"]) == (pytest.approx(paired.pvalue), 40, "sample")
    assert [found["low"], found["high"]] == pytest.approx(list(paired.confidence_interval()))
    apart = judged(tmp_path, numbered[0], [(f"other {key}", value) for key, value in numbered[1][:25]], margin=0.5)
    welch = stats.ttest_ind(new[:25], old, equal_var=False)
    assert (apart["p"], apart["paired"], apart["key"]) == (pytest.approx(welch.pvalue), 0, None)
    assert [apart["low"], apart["high"]] == pytest.approx(list(welch.confidence_interval()))
    for margin in (0.05, 0.5, 1.0):
        shown = judged(tmp_path, numbered[0], [(f"x{key}", value) for key, value in numbered[1]], margin=margin)
        holds = stats.ttest_ind(new - margin, old, equal_var=False, alternative="less").pvalue < 0.05
        assert ("non-inferior" in shown["claims"]) == holds


def test_yes_and_no_have_the_intervals_of_bonett_and_price_and_of_agresti_and_caffo(tmp_path: Path) -> None:
    cells = {(1, 1): 70, (1, 0): 3, (0, 1): 9, (0, 0): 18}  # old and new are right
    pairs = [cell for cell, count in cells.items() for _ in range(count)]
    old, new = ([(place, pair[side]) for place, pair in enumerate(pairs)] for side in (0, 1))
    found = judged(tmp_path, old, new)
    b, c, n = (9 + 1) / 102, (3 + 1) / 102, 102
    half = stats.t.ppf(0.975, n - 1) * math.sqrt((b + c - (b - c) ** 2) / (n - 1))
    assert found["difference"] == pytest.approx(0.06)
    assert [found["low"], found["high"]] == pytest.approx([b - c - half, b - c + half])
    apart = judged(tmp_path, old, [(f"x{key}", value) for key, value in new])
    p, q = (73 + 1) / 102, (79 + 1) / 102
    half = stats.t.ppf(0.975, 2 * (n - 1)) * math.sqrt((p * (1 - p) + q * (1 - q)) / (n - 1))
    assert [apart["low"], apart["high"]] == pytest.approx([q - p - half, q - p + half], rel=1e-3)


def test_few_samples_that_differ_make_no_gain_and_equal_answers_need_enough_samples(tmp_path: Path) -> None:
    rng, wrong, plain = np.random.default_rng(1), 0, 0
    for _ in range(400):
        flips = rng.random(100) < 0.05
        old = rng.random(100) < 0.9
        new = np.where(flips, rng.random(100) < 0.5, old)
        rows = [[(place, int(value)) for place, value in enumerate(each)] for each in (old, new)]
        wrong += judged(tmp_path, *rows, margin=0.01)["p"] < 0.05
        plain += bool(np.ptp(new - 1.0 * old)) and p_two_sided(new - 1.0 * old) < 0.05
    assert wrong / 400 <= 0.05 < plain / 400 + 0.03, (wrong, plain)
    claims = {n: judged(tmp_path, *[[(k, k % 2) for k in range(n)]] * 2, margin=0.01)["claims"] for n in (20, 1000)}
    assert claims == {20: [], 1000: ["equivalent", "non-inferior"]}


def test_a_key_with_several_rows_counts_by_its_mean_and_a_seed_is_a_whole_number(tmp_path: Path) -> None:
    doubled = [(key, value + sign) for key, value in ROWS for sign in (0.1, -0.1)]
    assert judged(tmp_path, ROWS, doubled)["difference"] == pytest.approx(0)
    file, other = tmp_path / "yes.csv", tmp_path / "no.csv"
    file.write_text("correct,sample,seed\ntrue,1,0\nFalse,2,1\ntrue,3,2\n")
    other.write_text("seed,sample,correct\n2.0,3,1\n1.0,2,0\n00,1,1\n")
    for key, used in (("sample", "sample"), (None, "seed")):
        found = judge_files(file, other, "correct", key=key, higher=True).as_values()
        assert (found["paired"], found["key"], found["difference"]) == (3, used, 0)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--require", "non-inferior", "--margin", "0.5"], 0, "non-inferior: holds"),
        (["--require", "harmful", "--margin", "0.5"], 4, "harmful: undecided"),
        (["--require", "superior-by-margin", "--margin", "0.5"], 3, "superior-by-margin: refuted"),
        ([], 0, "For verdicts add --margin"),
        (["--require", "better", "--margin", "1"], 2, "'better': it is no claim. Known: equivalent, harmful"),
        (["--require", "superior"], 2, "add --margin, chosen before the numbers"),
        (["--margin", "-1"], 2, "--margin -1: write a number above 0"),
        (["--metric", ""], 2, "--values: name the column to compare by --metric. Known: val_loss, cost of it."),
        (["--metric", "cost of it"], 2, "whether higher values of cost of it are better is not known"),
        (["--higher"], 2, "--metric val_loss: its name says that lower values are better"),
        (["--key", "val_loss"], 2, "--key val_loss: this is the metric"),
        (["--metric", "val_los", "--lower"], 2, "--metric val_los: there is no such column. Did you mean 'val_loss'?"),
        (["--key", "id"], 2, "--key id: there is no such column"),
        (["study"], 2, "name a study, or two files"),
    ],
)
def test_the_command_answers_and_explains(
    options: list[str], code: int, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [str(written(tmp_path / name, [(*row, 1) for row in ROWS], "sample", "val_loss", "cost of it"))
             for name in ("old.csv", "new.csv")]  # fmt: skip
    found, out, err = run(capfd, "verdict", "--values", *files, "--metric", "val_loss", *options)
    assert found == code, err
    assert says in out + err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has no row below a first line of names"),
        (b"seed,val_loss\n", "it has no row below a first line of names"),
        (b"seed,val_loss\n1,0.5\n2,much\n", "new.csv:3: val_loss is 'much': write a finite number"),
        (b"seed,val_loss\n1,nan\n", "new.csv:2: val_loss is 'nan'"),
        (b"seed,val_loss\n1,1_0\n", "new.csv:2: val_loss is '1_0'"),
        (b"seed,val_loss\n1\n", "new.csv:2: it has 1 cells under 2 names"),
        (b"seed,val_loss\n1,0,5\n", "new.csv:2: it has 3 cells under 2 names: a comma separates columns"),
        (b"seed;val_loss\n1;0.5\n", "--metric val_loss: there is no such column"),
        (b"seed,val_loss,val_loss\n1,2,3\n", "two columns are called 'val_loss'"),
        (b"seed,val_loss\n\xff,1\n", "it cannot be read as CSV"),
        (b"seed,val_loss\na,1\nb,2\nc,3\nd,4\ne,5\n", "column seed: seeds are whole numbers"),
        (b"seed,val_loss\na,1\nb,2\nx,3\n", "2 of the values of seed are in both files, of 5 and 3"),
    ],
)
def test_a_bad_file_is_one_line_with_its_place(
    content: bytes, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_bytes(content)
    old = written(tmp_path / "old.csv", ROWS, "seed", "val_loss")
    code, out, err = run(capfd, "verdict", "--values", str(old), str(tmp_path / "new.csv"), "--metric", "val_loss")
    assert (code, out) == (2, ""), out
    assert says in err
    assert len(err.splitlines()) == 1


def test_an_accuracy_is_a_share(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path / name, [(0, 90.5), (1, 91.0)], "seed", "accuracy")) for name in ("a.csv", "b.csv")]
    code, _, err = run(capfd, "verdict", "--values", *files)  # of two columns one is the key, the other the metric
    assert (code, err.split(": ", 2)[2]) == (
        2,
        "accuracy is 90.5: an accuracy is a share, from 0 to 1; divide percents by 100\n",
    )
