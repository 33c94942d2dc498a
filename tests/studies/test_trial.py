"""`ablate trial`: everything the ledger knows of one trial, from elsewhere and after everything else is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ablate.base.errors import RequestError
from ablate.driver.options import RunOptions
from ablate.studies.trial import details_lines, trial_details
from support import fakes, witness
from support.commands import refused, succeed
from support.page_reader import printed


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A study in which trial 0 ended well, 1 was put back once and 2 failed."""
    home = tmp_path / "runs" / "faked"
    home.mkdir(parents=True)
    with witness.searching(home, 3, epochs=2) as search:
        configs = [config for _ in range(3) if (config := search.next_trial())]
        for epoch in (1, 2):
            search.report(configs[0].key, fakes.report(configs[0], epoch))
        search.fail(configs[1].key, "its process died: killed", kind="died")
        search.fail(configs[2].key, "ValueError: no", detail="Traceback:\n  here\nValueError: no")
    return tmp_path / "runs"


def test_each_trial_tells_its_own_story(told: Path) -> None:
    settings = RunOptions(runs_dir=told)
    good, again, failed = (trial_details("faked", settings, number=number) for number in range(3))
    assert (good["state"], good["epochs"], good["max_epochs"], good["events"]) == ("COMPLETE", 2, 2, [])
    losses = [(r["epoch"], r["replicate"], r["metrics"]["val_loss"]) for r in good["reports"]]
    assert losses == [(epoch, 0, fakes.loss(0, epoch)) for epoch in (1, 2)]
    assert [(e["event"], e["epoch"], e["message"]) for e in again["events"]] == [
        ("retried", 0, "its process died: killed")
    ]
    assert (failed["state"], failed["error"]) == ("FAIL", "ValueError: no")
    assert failed["events"][0]["detail"].endswith("ValueError: no")
    assert list(failed["config"]["parameters"]) == ["training.learning_rate"]


def test_it_is_printed_for_a_person_and_for_a_program(told: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = ["--runs-dir", str(told)]
    out = succeed(capfd, "trial", "faked", "2", *place)
    assert re.search(r"faked/digits/2 \(search\): FAIL after 0 of 2 epochs", out)
    assert "  here" in out, "the traceback"
    assert out.rstrip().endswith("FAIL: ValueError: no")
    assert json.loads(succeed(capfd, "trial", "faked", "0", "--json", *place))["state"] == "COMPLETE"
    refused(capfd, "trial", "faked", "0", "--log", "--json", *place)
    assert "Means over 1 seed (each" in succeed(capfd, "trial", "faked", "0", *place)


def test_a_long_trial_shows_its_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "faked"
    home.mkdir()
    with witness.searching(home, 1, epochs=40) as search:
        config = search.next_trial()
        assert config is not None
        for epoch in range(1, 41):
            search.report(config.key, fakes.report(config, epoch))
    out = succeed(capfd, "trial", "faked", "0", "--runs-dir", str(tmp_path))
    shown = [int(line.split()[0]) for line in out.splitlines() if line.endswith(("CONTINUE", "STOP"))]
    assert shown == [1, 2, 3, 4, 5, 36, 37, 38, 39, 40]
    assert out.count("…") == 1


def test_an_absent_or_ambiguous_trial_is_refused_with_what_there_is(told: Path) -> None:
    with pytest.raises(RequestError, match="trial 9 of study 'faked': there is no such trial"):
        trial_details("faked", RunOptions(runs_dir=told), number=9)
    with pytest.raises(RequestError, match=r"has no data set 'digit'\. Did you mean 'digits'"):
        trial_details("faked", RunOptions(runs_dir=told), number=0, dataset="digit")


def test_a_trial_of_one_data_set_is_not_told_what_befell_that_of_another(tmp_path: Path) -> None:
    home = tmp_path / "faked"
    home.mkdir()
    with witness.searching(home, 2, datasets=("one", "two")) as search:
        configs = [config for _ in range(2) if (config := search.next_trial())]
        assert [(c.key.dataset, c.key.number) for c in configs] == [("one", 0), ("two", 0)]
        search.fail(configs[0].key, "ValueError: no")
        search.report(configs[1].key, fakes.report(configs[1], 1))
    settings = RunOptions(runs_dir=tmp_path)
    one, two = (trial_details("faked", settings, number=0, dataset=name) for name in ("one", "two"))
    assert (one["state"], len(one["events"]), one["reports"]) == ("FAIL", 1, [])
    assert (two["error"], two["events"], len(two["reports"])) == (None, [], 1)
    with pytest.raises(RequestError, match=r"several data sets have one\. Type --dataset to say which: one, two"):
        trial_details("faked", settings, number=0)


def test_epochs_are_means_over_replicates_and_the_test_split_has_a_line_of_its_own(told: Path) -> None:
    found = trial_details("faked", RunOptions(runs_dir=told), number=0)

    def row(epoch: int, replicate: int, **metrics: float | None) -> dict[str, object]:
        fixed = {"epoch": epoch, "replicate": replicate, "counts": epoch == 2, "decision": "CONTINUE"}
        return {**fixed, "metrics": metrics}

    first = [row(1, 0, val_accuracy=0.9, val_loss=1.0), row(1, 1, val_accuracy=0.7, val_loss=None)]
    last = [row(2, n, val_accuracy=0.5, val_loss=2.0, test_accuracy=share) for n, share in enumerate((0.25, 0.75))]
    text = printed(*details_lines(found | {"reports": first + last}))
    assert re.search(r"\n +1 +80\.00% +– +CONTINUE", text), "a diverged replicate has no mean"
    assert re.search(r"\n +2 +50\.00% +2 +CONTINUE", text)
    assert "On the test split: test accuracy 50.00%" in text
