"""A trial of a code version runs that version's code, whatever else is installed, and the reference measures it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ablate.api import load_study
from ablate.core.code_version import CodeVersion
from ablate.core.trainable import Member
from ablate.execution import worker
from ablate.execution.pack_run import Assignment
from ablate.functions.border.guarded import GuardedFunction, end_processes, server_for
from ablate.functions.code.archive import extract, zip_code
from ablate.functions.code.folder import CodeFolder
from ablate.functions.code.snapshot import snapshot
from ablate.functions.code.worktrees import checkout
from ablate.study.sections import trainable_name
from support.commanded import own_trial
from support.commands import LOCAL, run
from support.repositories import commit, git, repository, write

STUDY = """\
study: s
trainable: {name}
config: {{x: {{choices: [1]}}}}
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: grid}}
budget: {{trials: 1}}
epochs: 2
confirm: null
"""
TRAIN = """\
import sys
import helper
open(f"{sys.argv[1]}/score", "w").write(str(helper.VALUE))
for _ in range(2):
    print(f"val_loss={helper.VALUE} val_rest={len(open('rows/a.csv').read())}")
"""
MINE = """\
def train(config, run):
    import importlib.util, subprocess, sys
    for epoch in run.epochs():
        import helper
        assert importlib.util.find_spec("of_checkout") is None
        told = subprocess.run([sys.executable, "-c", "import helper; print(helper.VALUE)"], capture_output=True)
        yield {"val_loss": helper.VALUE * config["x"], "val_rest": float(told.stdout)}
"""
EVALUATE = "import sys; print('val_loss=', float(open(sys.argv[1] + '/score').read()) * 10, ' val_rest=0')\n"
COMMAND = {
    "command": f"{sys.executable} scripts/train.py {{folder}} {{x}}",
    "metrics": {"val_loss": "val_loss= ?{number}", "val_rest": "val_rest={number}"},
}


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a checkout whose VALUE is 1, which every Python has as an editable install."""
    files = {"mine.py": MINE, "scripts/train.py": TRAIN, "scripts/evaluate.py": EVALUATE, ".gitignore": "rows\nruns\n"}
    place = repository(tmp_path / "my repo", files | {"src/helper.py": "VALUE = 1"})
    write(place, {"rows/a.csv": "12345"})
    write(tmp_path / "site", {
        "sitecustomize.py": f"import site; site.addsitedir({str(tmp_path / 'site')!r})",
        "editable.pth": f"{place / 'src'}\n",
    })  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    monkeypatch.chdir(place)
    for entry in (place / "src", place):
        monkeypatch.syspath_prepend(str(entry))
    return place


def losses(repo: Path, name: str, capfd: pytest.CaptureFixture[str]) -> list[list[float]]:
    """Return val_loss and val_rest of the last report of the only trial of a study of the trainable `name`."""
    (repo / "study.yaml").write_text(STUDY.format(name=json.dumps(name)))
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    frame = load_study("s").trials()
    return frame.select("val_loss", "val_rest").rows()


@pytest.mark.parametrize("base", ["mine:train", trainable_name(COMMAND)])
def test_the_code_of_the_version_runs_and_no_other(repo: Path, base: str, capfd: pytest.CaptureFixture[str]) -> None:
    commit(repo, {"src/helper.py": "VALUE = 2"})
    version = snapshot(repo, name="s")
    commit(repo, {"src/helper.py": "VALUE = 3", "src/of_checkout.py": ""})
    checkout(version, repo / "runs" / "s" / "versions", link=["rows"])
    rest = 2.0 if base == "mine:train" else 5.0  # of a process that the function starts; the size of the linked data
    assert losses(repo, CodeVersion(base=base, tree=version.tree, inside=version.inside).name, capfd) == [(2.0, rest)]


def test_the_reference_measures_what_a_candidate_has_written(repo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reference = snapshot(repo, name="s")
    dishonest = EVALUATE.replace("* 10", "* 0")
    write(repo, {"src/helper.py": "VALUE = 4", "scripts/evaluate.py": dishonest})
    candidate = snapshot(repo, name="s", reference=reference)
    for each in (reference, candidate):
        checkout(each, repo / "runs" / "s" / "versions", link=["rows"])
    command = f"{sys.executable} scripts/evaluate.py {{output}}"
    name = CodeVersion(
        base=trainable_name(COMMAND), tree=candidate.tree, inside=candidate.inside, evaluate=command,
        reference=reference.tree,
    ).name  # fmt: skip
    assert losses(repo, name, capfd) == [(40.0, 0.0)]


def test_the_process_of_another_version_is_ended(tmp_path: Path) -> None:
    one, other = (CodeFolder(root=tmp_path / name, start=tmp_path / name) for name in "ab")
    for each in (one, other):
        each.root.mkdir()
    try:
        own, first = server_for("mine:train"), server_for("mine:train", one)
        assert server_for("mine:train", one) is first
        second = server_for("mine:train", other)
        assert (own.alive, first.alive, second.alive) == (True, False, True)
    finally:
        end_processes()


def test_a_process_that_was_killed_leaves_no_file_open() -> None:
    name, counts = "support.planted_state:train", []
    try:
        for _ in range(3):
            GuardedFunction(name).describe()
            counts.append(len(os.listdir("/proc/self/fd")))
            os.kill(server_for(name)._process.pid, signal.SIGKILL)
            server_for(name).code(0)  # at which its end is noticed
    finally:
        end_processes()
    assert len(set(counts)) == 1


def test_a_version_that_is_not_here_fails_in_one_line(repo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    version = snapshot(repo, name="s")
    name = CodeVersion(base=trainable_name(COMMAND), tree=version.tree, inside=version.inside).name
    (repo / "study.yaml").write_text(STUDY.format(name=json.dumps(name)))
    _, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert "is not on this machine" in err
    assert "Traceback" not in err


def test_a_machine_of_a_cluster_trains_with_the_files_that_it_was_sent(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "scripts" / "train.py").chmod(0o755)
    write(repo, {"src/helper.py": "VALUE = 7", "configs/small.yaml": "a: 1"})
    version = snapshot(repo, name="s")
    place = checkout(version, tmp_path / "versions", link=["rows"])
    sent = zip_code([place], every=True)
    place.rename(tmp_path / "elsewhere")
    words = f"{sys.executable} -c 'import helper; print(f\"val_loss={{{{helper.VALUE}}}}\")'"
    base = trainable_name({"command": words, "metrics": {"val_loss": "val_loss={number}"}})
    trial = own_trial(CodeVersion(base=base, tree=version.tree, inside=version.inside).name)
    member = Member(config=trial, checkpoints=tmp_path / "trial", attempt=1)
    assignment = Assignment(members=(member,), data_dir=None, device="cpu", trainer=None, threads=1, code="sent")
    monkeypatch.setattr(worker, "watch", lambda *_: None)
    monkeypatch.setattr(worker.ray, "get", {"sent": sent}.get)
    monkeypatch.setattr(sys, "path", [*sys.path])
    actor = worker.TrialActor({worker.PAUSE: None, worker.ASSIGNMENT: assignment})
    report = actor.train()[worker.TURN].outcomes[trial.key]
    actor.stop()
    assert report.metrics == ({"val_loss": 7.0},)
    there = extract(sent) / place.name
    found = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert found == set(git(repo, "ls-files", "--cached", "--others", "--exclude-standard").splitlines())
    assert (there / "scripts" / "train.py").stat().st_mode & 0o111
