"""A study directory that somebody else has filled: nothing in it runs, and every command ends in a clear line."""

from __future__ import annotations

import ast
import io
import pickle
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.faults import killing
from support.faults.ledger_dump import first_difference
from support.faults.reference import STUDY, Reference, dumped
from support.faults.study_runs import LOCAL, StudyRun
from support.paths import REPOSITORY

PACKAGE = REPOSITORY / "ablate"
MODULES = ("sitecustomize", "usercustomize", "ablate", "torch", "json", "yaml", "safetensors", "polars", "conftest")
CLEAN_CODES = {0, 1, 2, 75}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def safetensors_file(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def hostile_checkpoints(marker: Path) -> dict[str, bytes]:
    """Return files that pass for checkpoints of a later attempt by their names alone."""
    zipped = io.BytesIO()
    torch.save({"model": torch.zeros(3), "bomb": Bomb(marker)}, zipped)
    entry = b'{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}'
    return {
        "pickle": pickle.dumps(Bomb(marker)),
        "torch.save": zipped.getvalue(),
        "empty": b"",
        "endless header": safetensors_file(b"{}", 2**63),
        "deep header": safetensors_file(b"[" * 100_000 + b"]" * 100_000),
        "keys twice": safetensors_file(b'{"__metadata__":{"content":"1"},"__metadata__":{"content":"2"}}'),
        "a yaml tag": safetensors_file(b'{"__metadata__":{"content":"!!python/object/apply:os.abort []","sha256":""}}'),
        "content that is a number": safetensors_file(b'{"__metadata__":{"content":"1e999","sha256":"0"}}'),
        "a tensor without end": safetensors_file(b'{"w":' + entry % b"9223372036854775807,0" + b"}"),
        "bytes that are not there": safetensors_file(
            b'{"w":' + entry.replace(b"[0,0]", b"[0,4000000000]") % b"9" + b"}"
        ),
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """The small study, killed in the middle of its trial 2."""
    run = StudyRun(folder=tmp_path_factory.mktemp("killed"), text=STUDY)
    assert run.search(inject=partial(killing.at_report, "after", 6)).wait() == -9
    return run


@pytest.fixture
def run(killed: StudyRun, tmp_path: Path) -> StudyRun:
    """A copy of it, to be tampered with."""
    shutil.copytree(killed.folder, tmp_path / "copy")
    return StudyRun(folder=tmp_path / "copy", text=STUDY)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that exists once foreign code has run."""
    return tmp_path / "foreign code has run"


def commands(run: StudyRun) -> dict[str, list[str]]:
    place = ["--runs-dir", str(run.runs)]
    return {
        "status": ["status", run.name, *place],
        "list": ["list", *place],
        "report": ["report", run.name, *place],
        "sample": ["sample", run.name, "--trial", "1", *place],
        "maps": ["maps", run.name, "--trial", "1", *place],
        "resume": ["resume", run.name, *place, "--data-dir", str(run.data), *LOCAL],
    }


def check_all_clear(run: StudyRun, marker: Path, names: set[str] | None = None) -> dict[str, tuple[int, str]]:
    """Run the commands; each must end well or with a line of our own, and nothing foreign may have run."""
    said = {}
    for name, arguments in commands(run).items():
        if names is not None and name not in names:
            continue
        command = run.start(*arguments)
        code = command.wait()
        said[name] = (code, command.output)
        assert code in CLEAN_CODES, f"{name}: {command.output}"
        assert "Traceback" not in command.output, f"{name}: {command.output}"
        assert code == 0 or "ablate: " in command.output, f"{name}: {command.output}"
        assert not marker.exists(), name
    return said


def newest_folder(run: StudyRun) -> Path:
    """Return the checkpoints of the trial that goes on."""
    going = next(trial for trial in run.trials() if not trial.state.finished and trial.attempt)
    return run.home / "checkpoints" / "digits" / f"{going.key.number:06d}"


def test_hostile_checkpoints_are_passed_over(run: StudyRun, marker: Path, reference: Reference, long: bool) -> None:
    assert pickle.loads(hostile_checkpoints(marker)["pickle"]) is None
    assert marker.exists(), "the bomb is armed"
    marker.unlink()
    folder = newest_folder(run)
    files = hostile_checkpoints(marker)
    for epoch, content in enumerate(files.values(), start=1):
        (folder / f"epoch-{epoch:06d}-attempt-099.safetensors").write_bytes(content)
    for name in ("epoch-000009.pt", "epoch-000009.safetensors.pkl", "..-epoch-000009.safetensors", "state.pickle"):
        (folder / name).write_bytes(files["pickle"])
    said = check_all_clear(run, marker, None if long else {"resume"})
    assert said["resume"][0] == 0
    assert said["resume"][1].count("damaged checkpoint") == len(files)
    assert not first_difference(reference.ledger, dumped(run))


TAGGED = "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['%s']]"
DEEP = "[" * 100_000 + "]" * 100_000
ROWS: dict[str, tuple[str, str]] = {  # table and column, and what is put there; %s is the marker
    "study file with tags": ("ablate_study.file", "study: small\nseed: " + TAGGED),
    "study file without end": ("ablate_study.file", "study: small\nx: " + DEEP),
    "configuration with tags": ("ablate_trial.config", TAGGED),
    "configuration without end": ("ablate_trial.config", DEEP),
    "configuration with NaN": ("ablate_trial.config", '{"key": NaN}'),
    "configuration that is a list": ("ablate_trial.config", "[1, 2]"),
    "sampler state without end": ("ablate_trial.sampler_state", DEEP),
    "shape that is a tag": ("ablate_trial.shape", TAGGED),
    "metrics with tags": ("ablate_report.metrics", TAGGED),
    "metrics without end": ("ablate_report.metrics", DEEP),
    "metrics of text": ("ablate_report.metrics", '{"val_loss": "__import__(1)"}'),
    "metrics too large for a float": ("ablate_report.metrics", '{"val_loss": ' + "9" * 6000 + "}"),
    "metrics that are NaN": ("ablate_report.metrics", '{"val_loss": NaN, "val_accuracy": Infinity}'),
    "a note with tags": ("ablate_note.payload", TAGGED),
    "a note without end": ("ablate_note.payload", DEEP),
    "a checkpoint elsewhere": ("ablate_trial.checkpoint", "../../../../etc/passwd"),
    "an error with markup": ("ablate_trial.error", "[link=file:///etc/passwd]x[/] \x1b]0;y\x07"),
}
SHORT = {"configuration without end", "metrics with tags", "a note without end"}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in SHORT else pytest.mark.faults) for c in ROWS])
def test_hostile_rows_of_the_ledger_end_in_a_line(case: str, run: StudyRun, marker: Path, long: bool) -> None:
    place, content = ROWS[case]
    table, column = place.split(".")
    with closing(sqlite3.connect(run.home / "ledger.sqlite", isolation_level=None)) as database:
        value = content.replace("%s", str(marker))
        assert database.execute(f"UPDATE {table} SET {column} = ?", (value,)).rowcount
    check_all_clear(run, marker, None if long else {"status", "resume"})


@pytest.mark.faults
def test_a_ledger_that_is_a_pickle_is_not_read(run: StudyRun, marker: Path) -> None:
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (run.home / name).unlink(missing_ok=True)
    (run.home / "ledger.sqlite").write_bytes(pickle.dumps(Bomb(marker)))
    said = check_all_clear(run, marker, {"status", "resume"})
    assert all(code == 1 for code, _ in said.values())


def test_tables_and_study_files_of_others_run_nothing(run: StudyRun, marker: Path) -> None:
    for name in ("trials.parquet", "reports.parquet", "report/index.html"):
        (run.home / name).parent.mkdir(exist_ok=True)
        (run.home / name).write_bytes(pickle.dumps(Bomb(marker)))
    (run.home / "study.yaml").write_text(f"study: small\nmodel: {TAGGED % marker}\n")
    refused = run.start("search", str(run.home / "study.yaml"), "--runs-dir", str(run.runs), *LOCAL)
    assert refused.wait() == 2
    assert "Traceback" not in refused.output
    said = check_all_clear(run, marker, {"status", "report", "resume"})
    assert {code for code, _ in said.values()} == {0}
    assert (run.home / "trials.parquet").read_bytes()[:4] == b"PAR1"


@pytest.mark.parametrize("here", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["elsewhere", "inside"])
def test_modules_in_the_study_directory_are_not_imported(
    here: bool, run: StudyRun, marker: Path, tmp_path: Path
) -> None:
    for folder in (run.home, newest_folder(run), run.runs, run.home / "checkpoints"):
        for name in MODULES:
            (folder / f"{name}.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
        (folder / "evil.pth").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n")
    program = Path(sys.executable).with_name("ablate")  # the command as it is installed: cwd is not first on its path
    for name in ("status", "report") if here else ("status",):
        done = subprocess.run(
            [program, *commands(run)[name]],
            cwd=run.home if here else tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not marker.exists()


FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}


def test_nothing_in_the_package_unpickles_or_evaluates() -> None:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if reason := unsafe(node):
                found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {reason}")  # type: ignore[attr-defined]
    assert not found


def unsafe(node: ast.AST) -> str:
    """Return why a piece of code may run what it reads, or nothing."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN:
        return f"imports from {node.module}"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in FORBIDDEN:
        return "" if node.attr == "UnpicklingError" else f"uses {ast.unparse(node)}"
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func)
    owner, _, last = name.rpartition(".")
    if name in CALLS:
        return f"calls {name}"
    if name == "torch.load" and "weights_only=True" not in ast.unparse(node):
        return "calls torch.load"
    if owner == "yaml" and last in UNSAFE_YAML and "Loader=" not in ast.unparse(node):
        return f"calls yaml.{last}"
    if last in {"read_pickle", "from_pickle"} or (owner in {"np", "numpy"} and last == "load"):
        return f"calls {name}" if "allow_pickle=False" not in ast.unparse(node) else ""
    return ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("pickle.loads(b)", "uses pickle.loads"),
        ("pickle.UnpicklingError", ""),
        ("from joblib import load", "imports from joblib"),
        ("torch.load(f)", "calls torch.load"),
        ("torch.load(f, weights_only=True)", ""),
        ("yaml.load(f)", "calls yaml.load"),
        ("yaml.unsafe_load(f)", "calls yaml.unsafe_load"),
        ("yaml.safe_load(f)", ""),
        ("eval(x)", "calls eval"),
        ("model.eval()", ""),
        ("np.load(f, allow_pickle=True)", "calls np.load"),
        ("np.load(f, allow_pickle=False)", ""),
    ],
)
def test_what_is_looked_for_is_found(code: str, reason: str) -> None:
    assert [why for node in ast.walk(ast.parse(code)) if (why := unsafe(node))] == [reason] * bool(reason)
