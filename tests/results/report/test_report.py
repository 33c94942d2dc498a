from __future__ import annotations

import csv
import json
import math
import re
from types import SimpleNamespace

import polars as pl
import pytest

from ablate.base.errors import AblateError
from ablate.results.front import table
from ablate.results.front.findings import Findings
from ablate.results.front.front import front
from ablate.results.rendering.drawing import PALETTES, paint
from ablate.results.report import draw_figures, frame, front_lines, front_table, write_report
from ablate.results.trials.results import Results
from support.page_reader import Reader, printed, whole_page
from support.planted_study import make_study, plant, report_rows, reports_of, trial_row, trials_of


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    study = make_study(datasets=["digits", "mnist"])
    trials, reports = plant(study)
    home = tmp_path_factory.mktemp("home")
    notes = [SimpleNamespace(kind="test_opened", dataset="digits", payload={}, created_at=1_700_000_000.0)]
    path = write_report(Results(study, trials, reports, notes), home)
    return study, trials, reports, path


def read(study, trials, reports, home):
    return Reader(write_report(Results(study, trials, reports), home).read_text(encoding="utf-8"))


def test_page_is_well_formed_and_loads_nothing_from_elsewhere(written):
    assert "@import" not in whole_page(written[-1])
    assert not re.search(r"url\(", frame.asset("page.css"))


def test_page_says_first_what_it_rests_on(written):
    study, trials, _, path = written
    reader = Reader(path.read_text(encoding="utf-8"))
    begin = reader.text[: reader.text.index("rebuilt by")]
    own = trials.filter(dataset="digits")
    searched, confirmed = own.filter(stage="search"), own.filter(stage="confirm").height
    complete = searched.filter(state="COMPLETE").height
    assert "never saw the test split" in begin
    assert begin.count(f"{searched.height} search trials ({complete} complete,") == 1
    assert "study seed 0" in begin
    assert "3 seeds (1000000, 1000001, 1000002)" in begin
    assert f"{confirmed} networks confirmed on fresh seeds, test split, opened once at 2023-11-14 22:13 UTC" in begin
    assert re.search(r"Built with Python \d.* polars \d.* moocore \d", begin)
    assert f"rebuilt by ablate report {study.name}" in reader.text


def test_front_on_the_page_is_the_csv_file_and_the_front(written):
    study, trials, reports, path = written
    with (path.parent / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = front(trials, study.objectives)
    assert [(r["dataset"], int(r["trial"])) for r in rows] == expected.select("dataset", "trial").rows()
    page = Reader(path.read_text(encoding="utf-8")).rows
    heading = next(r for r in page if r[:2] == ["Settings", "Trial"])
    shown = [dict(zip(heading, r, strict=True)) for r in page if len(r) == len(heading) and r[1].isdigit()]
    assert len(shown) == len(rows)
    for cells, row in zip(shown, rows, strict=True):
        assert cells["Parameters"] == f"{int(row['params']):,}"
        half = max(
            float(row["accuracy_high"]) - float(row["accuracy"]), float(row["accuracy"]) - float(row["accuracy_low"])
        )
        assert cells["Test accuracy"] == f"{100 * float(row['accuracy']):.2f}% ± {100 * half:.2f}"
        assert cells["To the best"].endswith(row["verdict"])
        chance = float(row["front_probability"])
        assert cells["P(front)"] == f"{'≥ ' * (chance < 0.6)}{chance:.2f}"
        assert cells["Trial"] == row["trial"]
        last = reports.filter((pl.col("dataset") == row["dataset"]) & (pl.col("trial") == int(row["trial"])))
        values = last.filter(pl.col("epoch") == 6)["test_accuracy"]
        assert float(row["accuracy"]) == pytest.approx(values.mean())


def test_trials_csv_holds_every_trial_and_marks_the_front(written):
    study, trials, _, path = written
    table = pl.read_csv(path.parent / "trials.csv")
    assert table.height == trials.height
    marked = table.filter(pl.col("on_front")).select("dataset", "trial").rows()
    assert sorted(marked) == sorted(front(trials, study.objectives).select("dataset", "trial").rows())


def test_figures_in_the_page_hold_every_drawn_trial_and_no_unpainted_colour(written):
    text = written[-1].read_text(encoding="utf-8")
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1])
    assert {"front-digits", "front-mnist", "curves-digits", "curves-mnist"} == set(specs)
    trials = written[1].filter((pl.col("dataset") == "digits") & pl.col("state").is_in(["COMPLETE", "PRUNED"]))
    drawn = {v["trial"] for v in _values(specs["front-digits"]) if "trial" in v}
    assert drawn == set(trials["trial"].to_list())
    for palette in PALETTES.values():
        assert "role:" not in json.dumps(paint(specs["front-digits"], palette))


def _values(spec):
    return [v for layer in spec["layer"] for v in layer.get("data", spec.get("data", {})).get("values", [])]


@pytest.mark.services
def test_page_terminal_and_file_have_the_fit_of_all_confirmed_networks(written):
    study, trials, reports, path = written
    confirmed = trials.filter(stage="confirm", state="COMPLETE")
    fits = pl.read_csv(path.parent / "fits.csv")
    counts = [confirmed.filter(dataset=name).height for name in ("digits", "mnist")]
    assert fits["networks"].to_list() == counts
    text = " ".join(Reader(path.read_text(encoding="utf-8")).text.split())
    lines = printed(front_lines(Results(study, trials, reports)), width=5000)
    for row in fits.iter_rows(named=True):
        sentence = (
            f"times the parameters: error × {row['factor']:.2f} ({row['factor_low']:.2f} to {row['factor_high']:.2f})"
        )
        basis = f"({row['networks']} networks, 3 seeds, these test samples)"
        for said in (text, lines):
            assert sentence in said
            assert basis in said
    assert "digits and mnist, " in lines
    assert "Error against size, data set by data set" in text
    assert "not identifiable" not in text


@pytest.mark.usefixtures("quick")
def test_the_figure_has_the_curve_over_the_sizes_and_dashed_to_half_and_four_times(written):
    study, trials, reports, path = written
    fits = {row["dataset"]: row for row in pl.read_csv(path.parent / "fits.csv").iter_rows(named=True)}
    (figure,) = [each for each in draw_figures(Results(study, trials, reports)) if each.stem == "front-digits"]
    lines = [layer for layer in figure.spec["layer"] if "strokeDash" in str(layer["mark"])]
    ends = [[layer["data"]["values"][place]["size"] for place in (0, -1)] for layer in lines]
    low, high = fits["digits"]["smallest"], fits["digits"]["largest"]
    assert [each for pair in ends for each in pair] == pytest.approx(
        [low / 2, low, low, high, high, 4 * high], rel=1e-3
    )
    assert [layer["mark"]["strokeDash"] for layer in lines] == [[6, 4], [1, 0], [6, 4]]
    for point in (value for layer in lines for value in layer["data"]["values"]):
        assert point["low"] <= point["quality"] <= point["high"]
        assert point["interval"].startswith(f"{point['low']:.4g} to ")
    assert "spread" in dict(figure.key)


@pytest.mark.usefixtures("quick")
def test_names_from_a_study_cannot_run(tmp_path):
    wicked = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"
    study = make_study(variants=[{"name": wicked}, {"name": "</title>&amp;"}])
    rows = [
        trial_row("digits", 0, variant=wicked, val_accuracy=0.9),
        trial_row("digits", 1, variant="</title>&amp;", val_accuracy=0.8, params=100),
        trial_row("digits", 2, variant=wicked, state="FAIL", error="<script>alert(3)</script>"),
    ]
    reports = reports_of(report_rows(rows[0], [0.9]))
    path = write_report(Results(study, trials_of(rows), reports), tmp_path)
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert text.count("<script") == 4
    assert "<img src=x" not in text
    assert "<script>alert(3)</script>" in reader.text
    assert "</title>&amp;" in reader.text
    assert "\x1b[31m" not in printed(front_lines(Results(study, trials_of(rows))), width=200)
    assert "<script>alert(1)" in front_table(Results(study, trials_of(rows)))["variant"].to_list()[1]


@pytest.mark.usefixtures("quick")
def test_study_without_any_trial(tmp_path):
    reader = read(make_study(), trials_of([]), reports_of([]), tmp_path)
    assert "There is no answer yet" in reader.text
    assert "No trials." in reader.text
    assert (tmp_path / "report" / "front.csv").read_text().startswith("dataset,trial,stage")


@pytest.mark.usefixtures("quick")
def test_study_whose_trials_all_failed(tmp_path):
    rows = [trial_row("digits", i, state="FAIL", val_accuracy=math.nan, error=f"cause {i}") for i in range(30)]
    reports = reports_of([r for row in rows for r in report_rows(row, [math.nan])])
    reader = read(make_study(), trials_of(rows), reports, tmp_path)
    assert "30 search trials (30 failed)" in reader.text
    assert "Trial 19: cause 19" in reader.text
    assert "and 10 more in trials.csv" in reader.text


@pytest.mark.usefixtures("quick")
def test_study_of_one_trial_is_called_unconfirmed(tmp_path):
    rows = [trial_row("digits", 0, val_accuracy=0.9)]
    reader = read(make_study(confirm=None), trials_of(rows), reports_of(report_rows(rows[0], [0.9])), tmp_path)
    assert reader.text.count("Validation numbers of 1 search trial.") == 1
    assert reader.text.count("Nothing here is confirmed") == 1
    assert "Best: width 8 · no mlp, 90.00% validation accuracy, 1,000 parameters." in reader.text
    assert "Error against size" not in reader.text
    assert pl.read_csv(tmp_path / "report" / "fits.csv")["reason"].to_list() == ["under 4 sizes"]


@pytest.mark.usefixtures("quick")
def test_unconfirmed_study_says_that_the_best_looks_too_good(tmp_path):
    study = make_study(protocol="paper", confirm=None)
    trials, reports = plant(study, confirmed=False)
    complete = trials.filter(pl.col("state") == "COMPLETE").height
    reader = read(study, trials, reports, tmp_path)
    assert reader.text.count(f"Validation numbers of {complete} search trials.") == 1
    assert reader.text.count("look better than they are") == 1
    assert "paper: validation used the test split" in reader.text


@pytest.mark.services
@pytest.mark.usefixtures("quick")
def test_ten_thousand_trials_stay_usable(tmp_path):
    study = make_study()
    trials, reports = plant(study, trials=400, confirmed=False)
    copies = [
        (trials.with_columns(pl.col("trial") + 400 * i), reports.with_columns(pl.col("trial") + 400 * i))
        for i in range(25)
    ]
    many, curves = pl.concat([c[0] for c in copies]), pl.concat([c[1] for c in copies])
    path = write_report(Results(study, many, curves), tmp_path)
    assert path.stat().st_size < 3_000_000
    reader = Reader(path.read_text(encoding="utf-8"))
    assert "10,000 search trials" in reader.text
    assert "more curves are left out" in reader.text
    assert pl.read_csv(path.parent / "trials.csv", infer_schema_length=None).height == 10_000


def test_terminal_shows_the_front_of_every_data_set_within_80_columns(written):
    study, trials, reports, _ = written
    text = printed(front_lines(Results(study, trials, reports)))
    assert max(map(len, text.splitlines())) <= 80
    assert "digits: Best: " in text
    assert "mnist: Best: " in text
    for row in front_table(Results(study, trials, reports)).iter_rows(named=True):
        assert f" {100 * row['accuracy']:.2f}% " in text
    assert "There is no answer yet" in printed(front_lines(Results(study, trials_of([]))))


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "report").write_text("a file in the way")
    with pytest.raises(AblateError, match=r"the report below .*report cannot be written: File exists; fix that"):
        write_report(Results(make_study(), trials_of([]), reports_of([])), tmp_path)


def test_a_search_alone_names_the_best_and_compares_nothing():
    study = make_study(confirm=None)
    sizes, accuracies = (100, 1000, 5000, 20_000), (0.80, 0.93, 0.945, 0.95)
    rows = [trial_row("digits", i, params=sizes[i], val_accuracy=accuracies[i]) for i in range(4)]
    found = Findings(Results(study, trials_of(rows)), "digits").answer
    assert (found.case, found.named) == ("searched", None)
    assert found.text.startswith("Best: width 8 · no mlp, 95.00% validation accuracy, 20,000 parameters.")


@pytest.mark.parametrize(("columns", "lines"), [(80, 5), (160, 2)])
def test_a_long_name_keeps_its_room(written, monkeypatch, columns, lines):
    """Each row takes few lines, and no heading is cut, where a study varies many settings."""
    study, trials, reports, _ = written
    names = iter(range(10_000))
    long = "similarity separate · value separate · depth 2 · width"
    monkeypatch.setattr(table, "network", lambda *given, **more: f"{long} {next(names)}")
    text = printed(front_lines(Results(study, trials, reports)), width=columns)
    shown = text.split("─\n")[2].split("\n\n")[0].split("digits and mnist")[0]
    rows = [line for line in shown.splitlines() if line.strip()]
    height = front_table(Results(study, trials, reports)).filter(pl.col("dataset") == "mnist").height
    assert height <= len(rows) <= lines * height + 2
    assert max(map(len, text.splitlines())) <= columns
