from __future__ import annotations

import re

import pytest

from ablate.base.errors import RequestError
from ablate.results.comparison.rows import comparison
from ablate.results.front.tables import front_table
from ablate.results.report.paper import paper
from ablate.results.trials.results import Results
from support import planted_comparison, planted_study
from support.latex_reader import compiled

NUMBER = re.compile(r"\$(\\mathbf\{)?([-+0-9.]+)\}?(?: \\pm ([0-9.]+))?(?:\{\}\^\{(.*)\})?\$")


@pytest.fixture(scope="module")
def compared():
    study = planted_comparison.make_study()
    return Results(study, *planted_comparison.plant(study))


@pytest.fixture(scope="module")
def searched():
    study = planted_study.make_study()
    return Results(study, *planted_study.plant(study))


def body(text):
    """The cells of the lines below the headings, by the first of them, and the caption."""
    lines = text[text.index("\\midrule\n") + 9 : text.index("\n\\bottomrule")].splitlines()
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines]
    return {row[0]: row[1:] for row in rows}, re.search(r"\\caption\{(.*)\}\n", text)[1]


def test_a_comparison_has_each_row_s_mean_half_interval_best_and_mark(compared):
    rows, caption = body(paper(compared, ["variant", "val_accuracy", "val_loss.difference"]))
    table = comparison(compared).filter(kind="baseline").vstack(comparison(compared).filter(kind="variant"))
    best = {}
    for name, cells in rows.items():
        for label, cell in zip(("lists", "images"), cells[:2], strict=True):
            own = table.filter(metric="val_accuracy", column=label, variant=name).rows(named=True)[0]
            if own["mean"] is None:
                assert cell == r"\textendash{}"
                continue
            bold, mean, half, mark = NUMBER.fullmatch(cell).groups()
            assert float(mean) == pytest.approx(100 * own["mean"], abs=0.06)
            side = max(own["mean_high"] - own["mean"], own["mean"] - own["mean_low"])
            assert float(half) == pytest.approx(100 * side, abs=0.06)
            assert (mark == "*") == (own["p_adjusted"] is not None and own["p_adjusted"] < 0.05)
            if bold:
                best[label] = own["mean"]
        for label, cell in zip(("lists", "images"), cells[2:], strict=True):
            own = table.filter(metric="val_loss", column=label, variant=name).rows(named=True)[0]
            if own["difference"] is not None:
                assert float(NUMBER.fullmatch(cell)[2]) == pytest.approx(own["difference"], abs=0.006)
    for label in ("lists", "images"):
        assert best[label] == table.filter(metric="val_accuracy", column=label)["mean"].max()
    assert "over $n = 3$ seeds" in caption
    assert "$^{*}$: differs from qkv ($p < 0.05$" in caption
    assert caption.startswith("Validation accuracy, validation loss of table: means with 95\\% intervals")


def test_the_wider_side_of_an_interval_is_shown(compared):
    """Of .985, .979 and .973 the interval (of the log odds) is .867 to .990."""
    tables = planted_comparison.plant(compared.study, value=lambda run: 0.985 - 0.006 * (run.seed % 3))
    rows, _ = body(paper(Results(compared.study, *tables), ["variant", "val_accuracy"]))
    assert NUMBER.fullmatch(rows["kv"][0]).groups()[1:3] == ("98", "11")


def test_a_margin_marks_what_is_not_worse_and_the_caption_says_it():
    study = planted_comparison.make_study(
        compare={"baseline": "qkv", "metrics": ["val_accuracy"], "margin": {"val_accuracy": 0.03}}
    )
    results = Results(study, *planted_comparison.plant(study))
    rows, caption = body(paper(results))
    claims = dict(
        comparison(results).filter(kind="variant", metric="val_accuracy").select("variant", "claims").iter_rows()
    )
    assert "non-inferior" in claims["kv"]
    assert any("\\dagger" in cell for cell in rows["kv"])
    assert not any("\\dagger" in cell for cell in rows["qkv"])
    assert "not worse than qkv by more than 3 points" in caption


def test_a_front_has_the_settings_that_differ_and_its_objectives(searched):
    text = paper(searched)
    front = front_table(searched)
    rows, caption = body(text)
    differ = [name for name in ("model.width", "model.mlp") if front[name].n_unique() > 1]
    assert len(rows) == front.height
    heading = text[text.index("\\toprule") :].splitlines()[1]
    assert [name in heading for name in ("Width", "Test accuracy (\\%)", "Parameters")] == [True] * 3
    assert heading.count("&") + 1 >= len(differ) + 2
    for cells, row in zip(rows.values(), front.iter_rows(named=True), strict=True):
        found = next(m for cell in cells if (m := NUMBER.fullmatch(cell)) and m[3])
        assert float(found[2]) == pytest.approx(100 * row["accuracy"], abs=0.06)
        assert (found[1] is not None) == (row["accuracy"] == front["accuracy"].max())
        assert f"${row['params']:,}$".replace(",", "{,}") in cells
    assert caption.startswith("Test accuracy of planted: means with 95\\% intervals over $n = 3$ seeds")


def test_names_of_the_paper_take_the_place_of_those_of_the_study(compared):
    named = {"kv": "w/o $\\beta$ & V", "lists": "Lists", "val_accuracy": "Acc."}
    text = paper(compared, ["variant", "val_accuracy"], named)
    assert "w/o \\$\\textbackslash{}beta\\$ \\& V" in text
    assert " & Lists & images \\\\" in text
    assert "\\multicolumn{2}{c}{Acc.}" in text


@pytest.mark.parametrize("kind", ["compared", "searched"])
def test_a_wrong_name_is_refused_with_those_that_are_there(kind, request):
    results = request.getfixturevalue(kind)
    with pytest.raises(RequestError, match=r"--columns: val_acuracy: no column of .*Did you mean 'val_accuracy'"):
        paper(results, ["val_acuracy"])
    with pytest.raises(RequestError, match="--name: nobody: nothing in this table has that name"):
        paper(results, (), {"nobody": "x"})


@pytest.mark.parametrize("kind", ["compared", "searched"])
def test_every_known_column_is_written_and_compiled(kind, request, tmp_path):
    results = request.getfixturevalue(kind)
    with pytest.raises(RequestError) as error:
        paper(results, ["?"])
    known = str(error.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert len(known) > 8
    text = paper(results, known)
    assert len({len(cells) for cells in body(text)[0].values()}) == 1
    compiled(tmp_path, text)


def test_nothing_to_show_is_one_line():
    study = planted_study.make_study()
    trials = planted_study.trials_of([])
    with pytest.raises(RequestError, match="planted has no front yet"):
        paper(Results(study, trials, planted_study.reports_of([])))
