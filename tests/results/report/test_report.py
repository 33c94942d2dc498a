from __future__ import annotations

import csv
import json
import math
import re
import struct
from types import SimpleNamespace

import polars as pl
import pytest

from ablate.base.errors import AblateError
from ablate.results.front import terminal
from ablate.results.front.front import front
from ablate.results.front.summary import summary
from ablate.results.rendering.drawing import PALETTES, paint
from ablate.results.report import frame, front_lines, front_table, write_report
from ablate.results.trials.results import Results
from support.page_reader import Reader, printed
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
    path = written[-1]
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    for link in reader.links:
        assert not re.match(r"(?i)[a-z]+:|//", link) or link == "data:,"
        assert link.startswith(("#", "data:")) or (path.parent / link).is_file()
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert not re.search(r"url\(", frame.asset("page.css"))


def test_page_says_first_what_it_rests_on(written):
    study, trials, _, path = written
    reader = Reader(path.read_text(encoding="utf-8"))
    begin = reader.text[: reader.text.index("rebuilt by")]
    complete = trials.filter((pl.col("stage") == "search") & (pl.col("state") == "COMPLETE")).height
    confirmed = trials.filter((pl.col("stage") == "confirm") & (pl.col("dataset") == "digits")).height
    assert "never saw the test split" in begin
    assert f"48 search trials ({complete} complete," in begin
    assert "study seed 0" in begin
    assert "3 seeds (1000000, 1000001, 1000002)" in begin
    assert f"{confirmed} networks confirmed on fresh seeds, test split, opened once at 2023-11-14 22:13 UTC" in begin
    assert "log10 of params; reference point of val_accuracy, params derived" in begin
    assert re.search(r"Built with Python \d.* polars \d.* moocore \d", begin)
    assert f"rebuilt by ablate report {study.name}" in reader.text


def test_png_files_have_a_signature_and_twice_the_width(written):
    folder = written[-1].parent
    kinds = {"front-{}", "curves-{}", "slices-{}-val_accuracy", "parallel-{}"}  # too few trials for importances
    stems = {kind.format(name) for kind in kinds for name in ("digits", "mnist")}
    assert {p.stem for p in folder.glob("*.png")} == stems
    for path in (folder / f"{kind}-digits.png" for kind in ("front", "curves")):
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", content[16:24])
        assert 1500 <= width <= 1700
        assert 700 <= height <= 1000


def test_front_on_the_page_is_the_csv_file_and_the_front(written):
    study, trials, reports, path = written
    with (path.parent / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = front(trials, study.objectives)
    assert [(r["dataset"], int(r["trial"])) for r in rows] == expected.select("dataset", "trial").rows()
    shown = [r for r in Reader(path.read_text(encoding="utf-8")).rows if len(r) == 11 and r[0] != "Network"]
    assert len(shown) == len(rows)
    for cells, row in zip(shown, rows, strict=True):
        assert cells[1] == f"{int(row['params']):,}"
        assert cells[2] == f"{100 * float(row['accuracy']):.2f}%"
        low, high = 100 * float(row["accuracy_low"]), 100 * float(row["accuracy_high"])
        assert cells[3] == f"{low:.2f} to {high:.2f}"
        assert cells[5:8] == [row["verdict"], f"{float(row['front_probability']):.2f}", row["replicates"]]
        assert cells[10] == row["trial"]
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
    assert {"front-digits", "front-mnist", "curves-digits", "curves-mnist"} < set(specs)
    trials = written[1].filter((pl.col("dataset") == "digits") & pl.col("state").is_in(["COMPLETE", "PRUNED"]))
    drawn = {v["trial"] for v in _values(specs["front-digits"]) if "trial" in v}
    assert drawn == set(trials["trial"].to_list())
    for palette in PALETTES.values():
        assert "role:" not in json.dumps(paint(specs["front-digits"], palette))


def _values(spec):
    return [v for layer in spec["layer"] for v in layer.get("data", spec.get("data", {})).get("values", [])]


@pytest.mark.services
def test_each_network_of_the_front_is_one_point_of_the_fit(written):
    _, _, _, path = written
    networks = pl.read_csv(path.parent / "front.csv").group_by("dataset").agg(pl.len(), pl.col("replicates").sum())
    fits = pl.read_csv(path.parent / "fits.csv").join(networks, on="dataset")
    assert fits["networks"].to_list() == fits["len"].to_list()
    assert fits["points"].to_list() == fits["replicates"].to_list()


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
    assert "no trials" in reader.text
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
    assert "unconfirmed: a single search-stage validation number" in reader.text
    assert reader.text.count("The only network on the front") == 1
    assert "Cheapest on the front" not in reader.text
    assert (
        "width 8 · no mlp has 90.00% validation accuracy with 1,000 parameters. It is the only network" in reader.text
    )
    assert "not identifiable, because 1 distinct size, 6 are needed" in reader.text
    assert [r[5] for r in reader.rows if len(r) == 8][1] == "–"


@pytest.mark.usefixtures("quick")
def test_unconfirmed_study_says_that_the_best_looks_too_good(tmp_path):
    study = make_study(protocol="paper", confirm=None)
    trials, reports = plant(study, confirmed=False)
    complete = trials.filter(pl.col("state") == "COMPLETE").height
    reader = read(study, trials, reports, tmp_path)
    warning = f"unconfirmed: search-stage validation numbers; the best of {complete} looks better than it is"
    assert warning in reader.text
    assert "paper: validation used the test split" in reader.text


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [1, 3])
def test_one_and_three_objectives(count, tmp_path):
    objectives = [
        {"metric": "val_loss", "direction": "minimize"},
        {"metric": "params", "direction": "minimize", "log": True},
        {"metric": "flops", "direction": "minimize", "log": True},
    ][:count]
    study = make_study(objectives=objectives)
    rows = [
        trial_row("digits", i, params=100 * (i + 1), flops=3400 * (6 - i), val_loss=1 / (i + 1), val_accuracy=0.5)
        for i in range(6)
    ]
    reader = read(study, trials_of(rows), reports_of([]), tmp_path)
    assert ("no hypervolume is computed" in reader.text) == (count == 1)
    assert ("params, flops in log10" in reader.text) == (count == 3)
    found = pl.read_csv(tmp_path / "report" / "front.csv")
    assert found["trial"].to_list() == ([5] if count == 1 else [0, 1, 2, 3, 4, 5])
    assert found["loss"].to_list() == pytest.approx([1 / (n + 1) for n in found["trial"]])


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
    assert "9,970 more: trials.csv" in reader.text
    assert "more curves are left out" in reader.text
    assert pl.read_csv(path.parent / "trials.csv", infer_schema_length=None).height == 10_000


def test_terminal_shows_the_front_of_every_data_set_within_80_columns(written):
    study, trials, reports, _ = written
    text = printed(front_lines(Results(study, trials, reports)))
    assert max(map(len, text.splitlines())) <= 80
    assert "Front of digits" in text
    assert "Front of mnist" in text
    for row in front_table(Results(study, trials, reports)).iter_rows(named=True):
        assert f" {100 * row['accuracy']:.2f}% " in text
    assert "No front yet" in printed(front_lines(Results(study, trials_of([]))))


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "report").write_text("a file in the way")
    with pytest.raises(AblateError, match=r"the report below .*report cannot be written: File exists; fix that"):
        write_report(Results(make_study(), trials_of([]), reports_of([])), tmp_path)


def test_summary_of_a_search_names_the_best_and_the_cheapest_and_compares_nothing():
    study = make_study()
    sizes, accuracies = (100, 1000, 5000, 20_000), (0.80, 0.93, 0.945, 0.95)
    rows = [trial_row("digits", i, params=sizes[i], val_accuracy=accuracies[i]) for i in range(4)]
    answer, picks = summary(study, "digits", front_table(Results(study, trials_of(rows))))
    assert [pick.role for pick in picks] == ["Best of the front", "Cheapest on the front"]
    assert [pick.quality for pick in picks] == ["95.00%", "80.00%"]
    assert (
        "is the best of the front: 95.00% validation accuracy with 20,000 parameters. Numbers of the search" in answer
    )


@pytest.mark.parametrize(("columns", "lines"), [(80, 5), (160, 2)])
def test_a_long_name_of_a_network_keeps_its_room(written, monkeypatch, columns, lines):
    """Each row takes few lines, and no heading is cut, where a study varies many settings."""
    study, trials, reports, _ = written
    names = iter(range(10_000))
    long = "similarity separate · value separate · depth 2 · width"

    def named(*given):
        return [f"{long} {next(names)}", *cells(*given)[1:]]

    cells = terminal.front_cells
    monkeypatch.setattr(terminal, "front_cells", named)
    text = printed(front_lines(Results(study, trials, reports)), width=columns)
    table = text.split("Front of mnist")[1].split("─ \n")[1]
    rows = [line for line in table.splitlines() if line.strip()]
    height = front_table(Results(study, trials, reports)).filter(pl.col("dataset") == "mnist").height
    assert len(rows) <= lines * height
    assert max(map(len, text.splitlines())) <= columns
