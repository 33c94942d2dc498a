"""Text of others, from a study file, a user's code or a ledger, commands neither terminal nor spreadsheet."""

from __future__ import annotations

import csv
import io
import math
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from ablate.base.plain_text import (
    LONGEST_TEXT,
    finite,
    one_printable_line,
    printable,
    spreadsheet_cell,
    storable,
)
from ablate.cli import app as cli
from ablate.cli.terminal import Terminal
from ablate.results.trials.tables import csv_text
from support.commands import run

COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
LOUD = """\
def train(config, run):
    config["lr"]
    raise RuntimeError("\\x1b]0;owned\\x07\\x1b[2J\\udc80\\u202e" + "x" * 1_000_000)
"""
STUDY = """\
study: tiny
trainable: loud:train
config: {lr: {float: [0.1, 1.0]}}
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 4}
confirm: null
"""


@pytest.mark.services
def test_what_a_trial_says_of_its_failure_commands_no_terminal_and_fills_no_ledger(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "ablate", "search", "tiny.yaml", "--executor", "local", "--tracker", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=240, check=False)
    assert done.returncode == 1
    written = [done.stdout.decode(), done.stderr.decode()]
    for words in (["status", "tiny"], ["trial", "tiny", "0"], ["list"], ["status", "tiny", "--json"]):
        code, out, err = run(capfd, *words, "--runs-dir", str(tmp_path / "runs"))
        assert code == 0, err
        written += [out, err]
    assert r"\x1b]0;owned\x07" in written[1]
    assert [found for text in written for found in COMMANDS.findall(text)] == []
    assert (tmp_path / "runs" / "tiny" / "ledger.sqlite").stat().st_size < 3 * 3 * LONGEST_TEXT + 200_000


def test_every_console_of_the_program_is_a_terminal() -> None:
    sources = {path.name: path.read_text() for path in Path(cli.__file__).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"= (rich\.console\.)?Console\(", text)] == []


def test_a_terminal_shows_colours_of_its_own_and_none_of_others() -> None:
    out = io.StringIO()
    table = Table("name")
    table.add_row("\x1b[31mred\x1b[0m \x9b31m \ud800")
    Terminal(file=out, force_terminal=True, color_system="standard", width=80).print(table, "fine", style="green")
    shown = out.getvalue()
    assert r"\x1b[31mred\x1b[0m \x9b31m \ud800" in shown
    assert set(re.findall(r"\x1b\[[0-9;]*m", shown)) <= {"\x1b[32m", "\x1b[0m", "\x1b[1;32m"}


@given(st.text())
def test_printable_text_has_no_commands_and_stays_itself(text: str) -> None:
    shown = printable(text)
    assert COMMANDS.search(shown) is None
    assert printable(shown) == shown
    assert "\n" not in one_printable_line(text)
    assert printable("Ein kleines Mädchen\n\t漢字 🙂") == "Ein kleines Mädchen\n\t漢字 🙂"


@given(st.text(st.characters(exclude_categories=[])), st.integers(100, 200))
def test_stored_text_is_utf8_without_nul_and_bounded(text: str, limit: int) -> None:
    kept = storable(text * 50, limit)
    kept.encode()
    assert "\x00" not in kept
    assert len(kept) <= limit
    assert storable("short") == "short"
    assert storable("a" * 500 + "b" * 500, 100).startswith("a")
    assert storable("a" * 500 + "b" * 500, 100).endswith("b")


@pytest.mark.parametrize("text", ["=1+2", "+cmd", "-x", "@SUM(A1)", "\tx", "\r=1", "=-0.5", "-", "+-1", "- 1"])
def test_a_csv_cell_is_no_formula(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-0.5", "+3", "-1e-3", "-inf", "word", "1=1", ""])
def test_a_csv_cell_that_is_a_number_or_a_word_stays_itself(text: str) -> None:
    assert spreadsheet_cell(text) == text


def test_names_of_a_study_are_no_formulas_in_the_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "named.yaml"
    path.write_text(
        "study: named\ndatasets: [digits]\nvariants:\n- {name: \"=HYPERLINK('x')\", model: {width: 8, mlp: none}}\n"
    )
    code, out, _ = run(capfd, "plan", str(path), "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert code == 0
    assert row["variant"] == "'=HYPERLINK('x')"


def test_numbers_of_a_table_stay_numbers() -> None:
    table = pl.DataFrame({"a": [-0.5, None], "b": ["-0.5", "-b"], "c": [None, "@"]})
    assert csv_text(table) == "a,b,c\n-0.5,-0.5,\n,'-b,'@\n"


def test_numbers_are_written_as_json_has_them() -> None:
    values = {"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf, "d": "nan"}}
    assert finite(values) == {"a": [None, [1.5, None]], "b": {"c": None, "d": "nan"}}


def test_headings_of_a_csv_file_are_no_formulas_either() -> None:
    table = pl.DataFrame({"=1+1": [1.0], "@SUM(1)": [2.0], "-x": [3.0], "val_loss": [4.0]})
    assert csv_text(table).splitlines()[0] == "'=1+1,'@SUM(1),'-x,val_loss"
