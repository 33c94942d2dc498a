"""Sentences of page and terminal that were not true: openings, a front of one, validation on test, no width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markupsafe import Markup

from ablate.ledger import Ledger
from ablate.results.front.findings import Findings
from ablate.results.front.tables import differing, network
from ablate.results.rendering.drawing import Figure
from ablate.results.report import front_lines, write_report
from ablate.results.report.frame import render
from ablate.results.trials.results import Results
from support.commands import succeed
from support.page_reader import Reader, printed
from support.planted_study import make_study, report_rows, reports_of, trial_row, trials_of

STUDY = """\
study: said
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: {choices: [8, 16]}, depth: 1, mlp: none}
training: {epochs: 2, batch_size: 32, learning_rate: 1.0e-2}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 2}
confirm: {replicates: 2}
"""


pytestmark = pytest.mark.usefixtures("quick")


def searched(capfd: pytest.CaptureFixture[str], folder: Path, text: str, *more: str) -> tuple[str, str]:
    """Run `ablate search`; return what it printed and its page as a reader sees it."""
    file = folder / "study.yaml"
    file.write_text(text)
    where = ("--runs-dir", str(folder / "runs"), "--executor", "local", "--device", "cpu", "--tracker", "none")
    out = succeed(capfd, "search", str(file), *where, *more)
    return " ".join(out.split()), Reader((folder / "runs" / "said" / "report" / "index.html").read_text()).text


@pytest.mark.services
def test_the_page_says_how_often_and_when_the_test_split_was_opened(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, page = searched(capfd, tmp_path, STUDY)
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.search(rf"test split, opened once at {moment} UTC", page)
    out, page = searched(capfd, tmp_path, STUDY.replace("replicates: 2", "replicates: 3"), "--extend")
    assert "(2 seeds" in first
    assert "(3 seeds, look 2)" in out
    assert "(3 seeds, look 2)" in page
    with Ledger.open(f"sqlite:///{tmp_path}/runs/said/ledger.sqlite") as ledger:
        assert [n.kind for n in ledger.events("said")].count("test_opened") == 2
    assert "opened once" not in page
    assert re.search(rf"test split, opened 2 times: at {moment} UTC, {moment} UTC", page)


def test_nothing_is_confirmed_where_validation_is_the_test_split(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, page = searched(capfd, tmp_path, STUDY + "protocol: paper\n")
    for said in (out, page):
        assert "paper: validation used the test split" in said
        assert "not confirmed" in said
        assert not re.search(r"networks? confirmed", said)
        assert "opened" not in said
        assert "test split once" not in said
    assert "never confirmed" not in page


def test_a_front_of_one_is_not_compared_and_equal_ones_are_both_best() -> None:
    study = make_study(confirm=None)
    alone = [trial_row("digits", 0, val_accuracy=0.9), trial_row("digits", 1, val_accuracy=0.7, params=2000)]
    found = Findings(Results(study, trials_of(alone)), "digits").answer_text
    assert found.startswith("Best: width 8 · no mlp, 90.00% validation accuracy, 1,000 parameters.")
    equal = [trial_row("digits", number, val_accuracy=0.9) for number in range(2)]  # on every objective
    assert Findings(Results(study, trials_of(equal)), "digits").answer_text.startswith("One of the 2 best: width 8")


@pytest.mark.parametrize(
    ("accuracies", "title"),
    [
        ([0.9, 0.8], "2 networks confirmed on fresh seeds, test split."),
        ([0.8, 0.9], "2 networks confirmed on fresh seeds, test split; 1 of them is on the front."),
    ],
)
def test_confirmed_networks_that_the_table_leaves_out_are_counted(accuracies: list[float], title: str) -> None:
    """The first network has more parameters than the second."""
    rows = []
    for number, (params, accuracy) in enumerate(zip([2000, 1000], accuracies, strict=True)):
        rows.append(trial_row("digits", number, params=params, val_accuracy=accuracy))
        own = {"stage": "confirm", "source": number, "params": params, "replicates": 2}
        rows.append(trial_row("digits", number + 2, val_accuracy=accuracy, test_accuracy=accuracy, **own))
    text = " ".join(printed(front_lines(Results(make_study(), trials_of(rows))), width=200).split())
    assert title in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.9], "90.00%"),
        ([0.9, 0.9, 0.9], "90.00% (3 seeds equal)"),
        ([0.9, 0.90001, 0.90002], "90.00% ± <0.01"),
        ([0.98, 0.99], "98.50% ± 6.35"),
        ([0.8, 0.82], "81.00% ± 12.71"),
    ],
    ids=["one", "equal", "narrow", "two", "near 1"],
)
def test_an_interval_without_width_is_not_written_as_one(tmp_path: Path, values: list[float], said: str) -> None:
    study = make_study(confirm=None)
    row = trial_row("digits", 0, val_accuracy=sum(values) / len(values), replicates=len(values))
    trials, reports = trials_of([row]), reports_of(report_rows(row, values))
    text = re.sub(r" {2,}", "  ", printed(front_lines(Results(study, trials, reports)), width=200))
    assert f"  {said}  " in text
    assert "± 0.00" not in text
    reader = Reader(write_report(Results(study, trials, reports), tmp_path).read_text())
    assert said in [cell for row in reader.rows for cell in row]


@pytest.mark.parametrize(
    ("constraints", "params", "says"),
    [
        ([], [], "no trial is complete"),
        (["params <= 500"], [1000], "1 trial is complete, and none keeps params <= 500"),
        (["params <= 500", "val_loss <= 2"], [1, 900], "2 trials are complete, and none keeps params <= 500 and val_"),
    ],
)
def test_an_empty_front_says_why(tmp_path: Path, constraints: list[str], params: list[int], says: str) -> None:
    study = make_study(datasets=["digits", "mnist"], confirm=None, constraints=constraints)
    rows = [trial_row("digits", n, params=p, val_accuracy=0.9, val_loss=3.0) for n, p in enumerate(params)]
    results = Results(study, trials_of(rows), reports_of([]))
    assert f"digits: There is no answer yet: {says}" in (text := printed(front_lines(results), width=200))
    assert "mnist: There is no answer yet: no trial is complete." in text
    assert f"There is no answer yet: {says}" in Reader(write_report(results, tmp_path).read_text()).text


def test_words_between_backticks_are_code_in_sentences_alone() -> None:
    text = "type `ablate compare` <b> or `x`"
    html = render("shell.html.j2", title=text, text=text, style=Markup("a::after { content: '`x`' }"), live="")
    assert html.count("<code>ablate compare</code> &lt;b&gt; or <code>x</code>") == 2
    assert "content: '`x`'" in html


def test_the_repr_of_a_figure_is_short() -> None:
    figure = Figure(stem="front-data", title="Front", caption="x", spec={"data": list(range(10_000))})
    assert repr((figure,)) == "(Figure('front-data', 'Front'),)"


def test_tables_of_a_long_front_end_after_thirty_rows_and_name_the_file(tmp_path: Path, quick: None) -> None:
    rows = [
        trial_row("digits", n, params=1000 + n, val_accuracy=0.5 + n / 4000, **{"model.width": 8 + n})
        for n in range(2000)
    ]
    results = Results(make_study(confirm=None), trials_of(rows), reports_of([]))
    text = printed(front_lines(results), width=120)
    assert "… and 1,970 more: front.csv" in text
    assert text.count("\n") < 60
    page = write_report(results, tmp_path).read_text()
    assert "… and 1,970 more: front.csv" in page
    for file in ("front.csv", "trials.csv"):
        assert len((tmp_path / "report" / file).read_text().splitlines()) == 2001, file


def test_a_name_of_more_than_three_settings_is_the_number_and_what_differs_most() -> None:
    names = ("width", "depth", "mlp", "heads", "pair_position")
    study = make_study(model={name: {"int": [1, 64]} for name in names})
    rows = [
        {
            "trial": n,
            "variant": None,
            **{f"model.{name}": 2 + (n * step) % 5 for name, step in zip(names, (0, 1, 0, 1, 1), strict=True)},
        }
        for n in range(5)
    ]
    by = differing(rows, [f"model.{name}" for name in names])
    assert by == ["model.depth", "model.heads", "model.pair_position"]
    assert network(study, rows[3], by=by) == "trial 3 · depth 5 · heads 5 · pair position 5"
    assert network(study, rows[3]) == "trial 3"
    assert network(study, rows[3], without=("model.width", "model.mlp")) == "depth 5 · heads 5 · pair position 5"


def test_an_empty_front_says_how_many_trials_that_kept_the_constraints_were_stopped() -> None:
    study = make_study(confirm=None, constraints=["params <= 500"])
    rows = [trial_row("digits", n, params=100, val_accuracy=0.5, state="PRUNED", epochs=1) for n in range(17)]
    rows += [trial_row("digits", 17, params=1000, val_accuracy=0.9)]
    said = "of 17 trials that kept `params <= 500` at their last report, 17 were stopped early."
    assert said in printed(front_lines(Results(study, trials_of(rows), reports_of([]))), width=250)
