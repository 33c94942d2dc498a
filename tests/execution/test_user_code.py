"""Workers of a cluster get the user's code of a study; other machines need no copy of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import polars as pl
import pytest

from ablate.base.errors import ResourceError
from ablate.functions.code.archive import zip_code
from ablate.functions.code.changes import user_code
from ablate.study import parse_study
from support.faults.raylets import cluster

MODULE = """
import io
import os
from helpers.steps import where

def train(config, run):
    for epoch in run.epochs():
        yield {"val_module": float("ablate-code-" in __file__), "val_package": float("ablate-code-" in where)}
"""
STUDY = """\
study: carried
trainable: carried:train
config: {helper: "helpers.steps:where"}
epochs: 1
objectives: [{metric: val_module, direction: maximize}]
budget: {trials: 1}
confirm: null
"""


def write_code(folder: Path) -> None:
    (folder / "carried.py").write_text(
        MODULE.replace("import os\n", "", 1).replace("(config, run):", '(config, run):\n    config["helper"]')
    )
    (folder / "helpers").mkdir()
    (folder / "helpers" / "__init__.py").write_text("")
    (folder / "helpers" / "steps.py").write_text("where = __file__\n")
    (folder / "study.yaml").write_text(STUDY)


def test_what_a_study_names_by_import_path_is_carried_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_code(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = user_code(parse_study(STUDY, "study.yaml"))
    assert sorted(found) == [tmp_path / "carried.py", tmp_path / "helpers"]
    built_in = "study: a\ndatasets: {digits: {}}\nsampler: {name: 'torch.nn:Linear'}\n"
    assert user_code(parse_study(built_in, "study.yaml")) == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_of_a_cluster_imports_the_code_that_the_driver_sent(tmp_path: Path) -> None:
    """The module is in the worker's folder of sent code, not in the folder where the command was typed."""
    write_code(tmp_path)
    with cluster() as ray:
        ray.start(1)
        command = [sys.executable, "-m", "ablate", "search", "study.yaml", "--tracker", "none", "--device", "cpu"]
        done = subprocess.run(
            [*command, "--address", ray.address, "--gpus", "0"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    reports = pl.read_parquet(tmp_path / "runs" / "carried" / "reports.parquet")
    assert reports.select("val_module", "val_package").row(0) == (1.0, 1.0)


def test_too_much_code_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "table.py").write_bytes(b"#" * 2_000_000)
    archive = zipfile.ZipFile(io.BytesIO(zip_code([tmp_path / "big"])))
    assert archive.namelist() == ["big/table.py"]
    assert archive.infolist()[0].compress_size < 10_000
    with pytest.raises(ResourceError, match="has 2 MB, and at most 1 MB are sent"):
        zip_code([tmp_path / "big"], limit=1_000_000)
