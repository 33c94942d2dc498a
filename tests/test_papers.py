"""Both papers' study files: figures as published, sizes as derived, and each one run at a small scale."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from ablate.core.registry import TASKS
from ablate.driver.options import RunOptions
from ablate.driver.plan import make_plan
from ablate.driver.run import search
from ablate.engine.models import measure
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import load_task
from ablate.engine.training.made_up import made_up_scores
from ablate.studies.status import status_of
from ablate.studies.stored import read_study
from ablate.study import Study, load_study
from support.paths import REPOSITORY
from support.planted_tasks import REAL
from support.trials import configs

PAPERS = sorted((REPOSITORY / "search_spaces" / "papers").glob("*.yaml"))
QUICK = {"minimal_transformer_table1", "kv_attention_numbers"}  # one of each paper
SMALL_PAPERS = [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem not in QUICK)) for p in PAPERS]
PUBLISHED = REPOSITORY.parent / "shared" / "papers"
DATA = Path(os.environ.get("ABLATE_DATA") or REPOSITORY.parent / "shared" / "data")
NEEDED = {"tiny_shakespeare": "tinyshakespeare/input.txt", "multi30k_de_en": "multi30k/train.de"}
TRIALS = {
    "minimal_transformer_table1": 16,
    "minimal_transformer_table2": 10,
    "minimal_transformer_table3": 11,
    "minimal_transformer_imagenet": 3,
    "kv_attention_table2": 15 * 5 * 3 * 2 * 2,
    "kv_attention_table3": 6 * 5 * 3 * 2 * 2 * 2 + 3 + 5 * 2 * 2 * 2,
    "kv_attention_numbers": 3 * 5 * 2,
    "kv_attention_characters": 3 * 4,
    "kv_attention_translation": 6 * 3 * 2 * 2,
}


def paper(name: str, scale: float | None = None) -> Study:
    return load_study(REPOSITORY / "search_spaces" / "papers" / f"{name}.yaml", scale=scale)


def rows(name: str) -> list[dict[str, str]]:
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"the published tables are not here ({path})")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.services
def test_every_file_is_counted() -> None:
    assert {path.stem for path in PAPERS} == set(TRIALS)
    counts = {path.stem: sum(len(load_study(path).design(d)) for d in load_study(path).labels) for path in PAPERS}
    assert counts == TRIALS


@pytest.mark.parametrize(("table", "name"), [("2", "kv_attention_table2"), ("3", "kv_attention_table3")])
def test_paper_bs_figures_are_those_published(table: str, name: str) -> None:
    compare = paper(name).compare
    assert compare is not None
    expected = {}
    for row in rows("kv_attention_tables.csv"):
        if row["table"] == table:
            column = row["task"].removesuffix("_cifar100")
            cells = {k: float(v) for k, v in row.items() if k not in ("table", "task") and v}
            expected[column] = cells
    found = compare.published["val_accuracy"]
    assert {c: {v: f.value for v, f in cells.items()} for c, cells in found.items()} == expected


@pytest.mark.services
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_paper_as_figures_are_those_published_and_its_misprints_are_noted(dataset: str) -> None:
    study = paper({"mnist": "minimal_transformer_table2", "cifar10": "minimal_transformer_table3"}[dataset])
    assert study.compare is not None
    published = [row for row in rows("minimal_transformer_table2_3.csv") if row["dataset"] == dataset]
    plan = make_plan(study, data_dir=None, measure_time=False)
    assert len(published) == len(plan.rows) == len(study.rows)
    for row, planned in zip(published, plan.rows, strict=True):
        shown = {m: cells[dataset][planned.variant] for m, cells in study.compare.published.items()}
        assert planned.size["params"] == int(row["params_derived"])
        assert shown["params"].value == int(row["params_printed"])
        assert bool(shown["params"].note) == (row["params_printed"] != row["params_derived"])
        assert shown["q"].value == float(row["q_printed"])
        losses = {m: shown[m].value for m in ("train_loss", "val_loss")}
        assert losses == {m: float(row[m]) for m in losses}
        shares = {"train_accuracy": "train_acc_pct", "val_accuracy": "val_acc_pct"}
        assert {m: shown[m].value for m in shares} == pytest.approx({m: float(row[c]) / 100 for m, c in shares.items()})


@pytest.mark.services
def test_paper_as_first_table_is_as_published_and_its_q_follows_from_our_sizes() -> None:
    study = paper("minimal_transformer_table1")
    assert study.compare is not None
    plan = make_plan(study, data_dir=None, measure_time=False)
    for row in rows("minimal_transformer_table1.csv"):
        heads = f"{row['heads']} head{'' if row['heads'] == '1' else 's'}"
        name = f"{row['depth']} blocks, {heads}{', no MLP' * (row['mlp'] == 'no')}"
        shown = {m: cells[row["dataset"]][name] for m, cells in study.compare.published.items()}
        assert shown["q"].value == float(row["q_printed"])
        assert shown["val_accuracy"].value == pytest.approx(float(row["val_acc_pct"]) / 100)
        assert shown["train_loss"].value == float(row["train_loss"])
        (ours,) = (p for p in plan.rows if (p.variant, p.dataset) == (name, row["dataset"]))
        assert ours.q is not None
        q = round(ours.q, 2)
        assert (q == shown["q"].value) != bool(shown["q"].note), (name, row["dataset"], q)


def test_tiny_imagenets_network_has_the_size_of_a_vit_base() -> None:
    """12 blocks of 12 heads, 768 wide with an MLP of 3072: ViT-B/16 has 85,798,656 weights without its head (timm).

    Fixed positions leave out 197 * 768, and a norm behind the last block of 2 * 768 is not in this family.
    """
    study = paper("kv_attention_table3")
    model, task, _ = configs(study, "tiny_imagenet", {"variant": "QKV"})
    shape = load_task(task).shape(None)
    assert (shape.tokens, shape.features, shape.outputs) == (196, 768, 200)
    assert measure(model, shape).params == 85_798_656 - 197 * 768 - 2 * 768 + 768 * 200 + 200


@pytest.mark.services
@pytest.mark.parametrize("path", SMALL_PAPERS)
def test_every_file_runs_at_a_small_scale(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(path)
    for task in {config.task for config in study.datasets.values()}:
        needed = DATA / NEEDED.get(task.replace("en_de", "de_en"), ".")
        if task in REAL.names():
            monkeypatch.setitem(TASKS._paths, task, "support.planted_tasks:build")
        elif not needed.exists():
            pytest.skip(f"{needed} is not here (../shared/data or ABLATE_DATA)")
    text = path.read_text().replace(
        "width: 768, depth: 12, heads: 12, mlp: 3072", "width: 24, depth: 1, heads: 2, mlp: 8"
    )
    file = tmp_path / path.name
    file.write_text(text)
    settings = RunOptions(runs_dir=tmp_path / "runs", executor="local", tracker="none", data_dir=DATA)
    console = Console(width=110, record=True, file=io.StringIO())
    outcome = search(file, settings, console, scale=0.002)
    shown = console.export_text()
    assert shown.index("paper: validation used the test split") < shown.index("scaled 0.002")
    cells = pl.read_csv(outcome.home / "report" / "comparison.csv")
    assert cells["scaled"].all()
    assert cells["failed"].sum() == 0
    assert (cells["configurations"] == cells["planned"]).all()
    assert cells.filter(pl.col("planned") > 0)["mean"].is_not_null().all()
    assert study.compare is not None
    listed = sum(len(c) for by_column in study.compare.published.values() for c in by_column.values())
    assert cells["published"].is_not_null().sum() == listed
    page = outcome.report.read_text()
    assert page.index("paper: validation used the test split") < page.index("scaled 0.002")


def test_made_up_scores_fit_every_output() -> None:
    token = InputShape(tokens=5, features=3, outputs=7, train_samples=9, inputs="ids", output="token")
    scores, targets = made_up_scores(token)
    assert (scores.shape, targets.shape) == ((1, 5, 7), (1, 5))


@pytest.mark.services
def test_data_sets_run_one_after_the_other_stand_in_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS._paths, "mnist", "support.planted_tasks:build")
    path = REPOSITORY / "search_spaces" / "papers" / "kv_attention_table3.yaml"
    settings = RunOptions(runs_dir=tmp_path, executor="local", tracker="none")
    for only in (["mnist-7"], ["mnist-4"]):
        outcome = search(path, settings, Console(file=io.StringIO()), scale=0.001, only=only)
    cells = pl.read_csv(outcome.home / "report" / "comparison.csv")
    assert cells["column"].unique().to_list() == ["mnist"]
    assert set(cells["configurations"]) == {2}
    counts = status_of(read_study(outcome.study.name, settings), settings)["trials"]
    assert {name: states["COMPLETE"] for name, states in counts.items()} == {"mnist-4": 5, "mnist-7": 5}
