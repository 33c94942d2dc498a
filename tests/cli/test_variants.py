"""`ablate compare --variant`: some rows of a comparison now, the others by a later command."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from ablate.ledger import Ledger, Snapshot
from support.commands import LOCAL, TINY, run

TABLE = """\
study: table
datasets: {digits: {patch: 4, train_limit: 96}}
model: {width: 8, depth: {choices: [1, 2]}}
training: {epochs: 2, batch_size: 32}
replicates: 2
variants:
  - {name: whole, model: {mlp: 8}}
  - {name: none, model: {mlp: none}}
  - {name: shared, model: {mlp: 8, similarity: shared}}
  - {name: value, model: {mlp: 8, value: none, bias: none}}
compare: {baseline: whole, metrics: [val_accuracy, test_accuracy]}
"""
WHOLE = "whole", "none", "shared", "value"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.yaml").write_text(TABLE)
    return tmp_path / "table.yaml"


def options(*variants: str) -> list[str]:
    return [word for name in variants for word in ("--variant", name)]


def snapshot(runs: str) -> Snapshot:
    with Ledger.open(f"sqlite:///{runs}/table/ledger.sqlite") as ledger:
        return ledger.snapshot("table")


def values(found: Snapshot) -> dict[tuple[object, ...], list[dict[str, float]]]:
    """Return what was reported, by variant and settings, without times."""
    configs, said = {trial.key: trial.config for trial in found.trials}, defaultdict(list)
    for report in sorted(found.reports, key=lambda each: (each.epoch, each.replicate)):
        parameters = configs[report.key].parameters
        said[parameters["variant"], parameters["model.depth"]].append(dict(report.metrics))
    return dict(said)


def trained(found: Snapshot) -> list[str | None]:
    """Return the variants of the trials in the order of their numbers, without the evaluations on the test split."""
    return [trial.config.variant for trial in found.trials if trial.config.stage == "search"]


def test_rows_in_three_commands_are_those_of_one(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("value", "none"), ("whole", "none"), ()
    for names in asked:
        code, out, err = run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "parts", *options(*names))
        assert code == 0, err
        assert ("6 of 8 trials have ended" in out) == (names == ("whole", "none"))
    assert run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "one")[0] == 0
    parts, one = snapshot("parts"), snapshot("one")
    assert values(parts) == values(one)
    assert all("test_accuracy" in rows[-1] for rows in values(parts).values())
    assert trained(parts) == ["value", "none", "value", "none", "whole", "whole", "shared", "shared"]
    assert trained(one) == [*WHOLE, *WHOLE]


def test_a_plan_counts_the_rows_that_are_asked_for(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "plan", "table.yaml", "--no-time", *options("none"))
    assert code == 0
    assert "digits: 2 trials of up to 2 epochs" in out


@pytest.mark.parametrize(
    ("text", "variant", "rule"),
    [
        (TABLE, "non", "only_variants = 'non': this name is not known here. Did you mean 'none'?"),
        (TINY, "none", "only_variants = 'none': this name is not known here."),
        (
            TABLE.replace(
                "training: {", "tune: {trials: 2, training: {learning_rate: {float: [1e-3, 1e-2]}}}\ntraining: {"
            ),
            "none",
            "only_variants: a search or a tuned comparison trains all of its variants: leave --variant out",
        ),
    ],
)
def test_where_rows_cannot_be_chosen_one_line_says_why(
    text: str, variant: str, rule: str, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    code, _, err = run(capfd, "compare", "table.yaml", *LOCAL, *options(variant))
    assert code == 2
    assert rule in " ".join(err.split())
    assert not Path("runs").exists()
