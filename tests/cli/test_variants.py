"""`ablate compare --variant`: some rows of a comparison now, the others by a later command."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from ablate.core.trial import TrialState
from ablate.ledger import Ledger, Snapshot
from ablate.study import parse_study
from support.commands import LOCAL, run
from support.extended import COMPARISON
from support.searches import hold_of, search_of, url_in

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


def values(found: Snapshot) -> dict[tuple[object, ...], list[Mapping[str, float]]]:
    """Return what was reported, by data set, variant, depth and stage."""
    configs, said = {trial.key: trial.config for trial in found.trials}, defaultdict(list)
    for report in sorted(found.reports, key=lambda each: (each.epoch, each.replicate)):
        config = configs[report.key]
        said[config.key.dataset, config.variant, config.parameters["model.depth"], config.stage].append(report.metrics)
    return dict(said)


def trained(found: Snapshot, dataset: str = "digits") -> list[str | None]:
    """Return the variants of a data set's trials in the order of their numbers."""
    return [t.config.variant for t in found.trials if t.key.dataset == dataset and t.config.stage == "search"]


def test_rows_in_three_commands_are_those_of_one(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The test split is opened when the last row has ended, and the study is not finished before."""
    kinds = []
    for names in (("shared",), ("none", "whole"), ()):
        code, out, err = run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "parts", *options(*names))
        assert code == 0, err
        status = json.loads(run(capfd, "status", "table", "--runs-dir", "parts", "--json")[1])
        kinds.append(Counter(event.kind for event in snapshot("parts").events)["frozen"])
        assert (status["resume"] is None) == (names == ())
        assert ("trials have ended: these numbers will change" in " ".join(out.split())) == (names == ("shared",))
    assert kinds == [0, 0, 2]
    assert run(capfd, "compare", "table.yaml", *LOCAL, "--runs-dir", "one")[0] == 0
    parts, one = snapshot("parts"), snapshot("one")
    assert values(parts) == values(one)
    assert trained(parts) == ["shared", "shared", "none", "none", "whole", "whole"]
    assert trained(parts, "copy") == ["none", "none", "whole", "whole"]
    assert trained(one) == ["whole", "none", "shared"] * 2


def test_further_seeds_of_other_rows_wait(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "compare", "table.yaml", *LOCAL, *options("whole", "none"), "--dataset", "digits")[0] == 0
    file.write_text(TABLE.replace("replicates: 2", "replicates: 3"))
    code, _, err = run(capfd, "compare", "table.yaml", *LOCAL, *options("none"), "--dataset", "digits", "--extend")
    assert code == 0, err
    trials = snapshot("runs").trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert Counter(t.config.variant for t in trials for _ in t.config.seeds) == {"whole": 4, "none": 6}


def test_unfinished_trials_of_other_rows_wait_and_refused_ones_are_passed(tmp_path: Path) -> None:
    rows = "variants: [{name: far, model: {width: 70}}, {name: large, model: {width: 100}},"
    study = parse_study(COMPARISON.replace("variants: [", f"constraints: [params <= 10600]\n{rows}"))
    found = []
    for only in (("wide",), ("large", "narrow"), ()):
        with Ledger.open(url_in(tmp_path)) as ledger, hold_of(study, ledger) as writer:
            search = search_of(study, writer, ledger, only=only)
            taken = [search.next_trial()] if only == ("wide",) else list(iter(search.next_trial, None))
            found.append(Counter(config.variant for config in taken if config is not None))
    assert found[:2] == [{"wide": 1}, {"narrow": 4}]
    assert found[2] == {"wide": 4, "narrow": 4, "far": 4}


def test_where_rows_cannot_be_chosen_one_line_says_why(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def refusal(variant: str) -> str:
        code, _, err = run(capfd, "compare", "table.yaml", *LOCAL, *options(variant))
        assert code == 2
        assert not Path("runs").exists()
        return " ".join(err.split())

    assert "--variant 'non': the comparison has no such row. Did you mean 'none'?" in refusal("non")
    file.write_text(TABLE + "tune: {trials: 2, training: {learning_rate: {float: [1e-3, 1e-2]}}}\n")
    assert "study 'table' tunes its rows, all of them at once. Leave the option out." in refusal("none")
