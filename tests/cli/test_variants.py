"""`ablate compare --variant`: some rows of a comparison now, the others by a later command."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ablate.core.trial import TrialState
from ablate.ledger import Ledger, Snapshot
from support.commands import LOCAL, run

TABLE = """\
study: table
datasets: {digits: {patch: 4, train_limit: 96}, copy: {train_limit: 64}}
model: {width: 8, depth: {choices: [1, 2]}}
training: {epochs: 2, batch_size: 32}
replicates: 2
variants:
  - {name: whole, model: {mlp: 8}}
  - {name: none, model: {mlp: none}}
  - {name: shared, datasets: [digits], model: {mlp: 8, similarity: shared}}
compare: {baseline: whole, metrics: [val_accuracy, test_accuracy]}
"""


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
    """Return what was reported, by data set, variant and depth, without the evaluations on the test split."""
    configs, said = {trial.key: trial.config for trial in found.trials}, defaultdict(list)
    for report in sorted(found.reports, key=lambda each: (each.epoch, each.replicate)):
        config = configs[report.key]
        place = (config.key.dataset, config.variant, config.parameters["model.depth"], config.stage)
        said[place].append(dict(report.metrics))
    return dict(said)


def trained(found: Snapshot, dataset: str = "digits") -> list[str | None]:
    """Return the variants of a data set's trials in the order of their numbers."""
    own = [trial.config for trial in found.trials if trial.key.dataset == dataset and trial.config.stage == "search"]
    return [config.variant for config in own]


def test_rows_in_three_commands_are_those_of_one(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The test split is opened when the last row has ended, and the study is not finished before."""
    kinds = []
    for names in (("shared",), ("none", "whole"), ()):
        code, out, err = run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "parts", *options(*names))
        assert code == 0, err
        status = json.loads(run(capfd, "status", "table", "--runs-dir", "parts", "--json")[1])
        found = snapshot("parts")
        kinds.append(Counter(event.kind for event in found.events)["frozen"])
        assert (status["resume"] is None) == (names == ())
        assert ("trials have ended: these numbers will change" in " ".join(out.split())) == (names == ("shared",))
    assert kinds == [0, 0, 2]
    assert run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "one")[0] == 0
    parts, one = snapshot("parts"), snapshot("one")
    assert values(parts) == values(one)
    assert trained(parts) == ["shared", "shared", "none", "none", "whole", "whole"]
    assert trained(parts, "copy") == ["none", "none", "whole", "whole"]
    assert trained(one) == ["whole", "none", "shared"] * 2


def test_further_seeds_and_unfinished_trials_of_other_rows_wait(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "compare", "table.yaml", *LOCAL, *options("whole", "none"), "--dataset", "digits")[0] == 0
    file.write_text(TABLE.replace("replicates: 2", "replicates: 3"))
    code, _, err = run(capfd, "compare", "table.yaml", *LOCAL, *options("none"), "--dataset", "digits", "--extend")
    assert code == 0, err
    seeds: Counter[str | None] = Counter()
    for trial in snapshot("runs").trials:
        assert trial.state is TrialState.COMPLETE
        seeds[trial.config.variant] += len(trial.config.seeds)
    assert seeds == {"whole": 4, "none": 6}


@pytest.mark.parametrize(
    ("change", "variant", "rule"),
    [
        (("", ""), "non", "--variant 'non': the comparison has no such row. Did you mean 'none'?"),
        (
            ("training: {", "tune: {trials: 2, training: {learning_rate: {float: [1e-3, 1e-2]}}}\ntraining: {"),
            "none",
            "--variant 'none': study 'table' tunes its rows, all of them at once. Leave the option out.",
        ),
    ],
)
def test_where_rows_cannot_be_chosen_one_line_says_why(
    change: tuple[str, str], variant: str, rule: str, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TABLE.replace(*change, 1))
    code, _, err = run(capfd, "compare", "table.yaml", *LOCAL, *options(variant))
    assert code == 2
    assert rule in " ".join(err.split())
    assert not Path("runs").exists()
