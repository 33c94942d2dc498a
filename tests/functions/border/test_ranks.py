"""Several processes that train one trial together: the numbers of one process, killed and resumed, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.api import load_study
from support.commands import LOCAL, run

CODE = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(config, run):
    dist.init_process_group("gloo")  # as code for torchrun does; the group is there already
    data = torch.linspace(-1, 1, 64).reshape(16, 4)
    model = run.build(nn.Linear, 4, 2)
    net = DistributedDataParallel(model) if run.world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    run.keep(model=model, optimizer=optimizer)
    own = run.stream("own")
    for epoch in run.epochs():
        loss = net(data[run.rank :: run.world]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        drawn = torch.tensor([own.random(), torch.rand(()).item()], dtype=torch.float64)
        gathered = [torch.zeros(2, dtype=torch.float64) for _ in range(run.world)]
        if run.world > 1:
            dist.all_gather(gathered, drawn)
        else:
            gathered = [drawn]
        if os.environ.get("FAULT") and epoch == 3 and run.rank == 1 and run.seed == 1:
            fault(os.environ["FAULT"])
        with torch.no_grad():
            yield {
                "val_loss": model(data).square().mean().item(),
                "val_first": float(gathered[0].sum()),
                "val_last": float(gathered[-1].sum()),
            }
    dist.destroy_process_group()

def fault(kind):
    if kind == "error":
        raise ValueError("in rank 1 alone")
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
"""
STUDY = """\
study: ranks
trainable: mine:train
config: {lr: 0.05}
processes: %d
epochs: 5
replicates: 2
objectives: [{metric: val_loss, direction: minimize}]
scheduler: {name: none}
budget: {trials: 1}
confirm: null
"""


def reports(
    folder: Path,
    processes: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    executor: tuple[str, ...] = LOCAL,
    fault: str = "",
) -> tuple[int, str, list[dict[str, float]]]:
    """Return exit code, messages and the reports by epoch and seed of a study with some processes for each trial."""
    folder.mkdir()
    code = CODE if processes > 1 else CODE.replace('    dist.init_process_group("gloo")', "    pass")
    (folder / "mine.py").write_text(code.replace("    dist.destroy_process_group()\n", "") if processes == 1 else code)
    (folder / "study.yaml").write_text(STUDY % processes)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FAULT", fault)
    code_, _, err = run(capfd, "search", "study.yaml", *executor)
    table = load_study("ranks").reports()
    columns = ["epoch", "replicate", "val_loss", "val_first", "val_last"]
    return code_, err, table.sort("epoch", "replicate").select(columns).rows(named=True) if table.height else []


@pytest.mark.services
def test_two_ranks_have_the_numbers_of_one_process_and_a_killed_rank_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The mean gradient of two halves of the data is that of the whole."""
    status, err, alone = reports(tmp_path / "alone", 1, monkeypatch, capfd)
    assert status == 0, err
    status, err, two = reports(tmp_path / "two", 2, monkeypatch, capfd)
    assert status == 0, err
    assert len(two) == len(alone) == 10
    for one, other in zip(alone, two, strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=1e-5)
        assert other["val_first"] == one["val_first"], "rank 0 draws what a single process draws"
        assert other["val_last"] != other["val_first"], "each rank has random numbers of its own"
    assert len({row["val_last"] for row in two}) == 10
    status, err, killed = reports(tmp_path / "killed", 2, monkeypatch, capfd, fault="kill")
    assert status == 0, err
    assert (tmp_path / "killed" / "killed").exists()
    assert killed == two, "equal to the last bit"
    status, err, on_ray = reports(
        tmp_path / "ray", 2, monkeypatch, capfd, executor=("--gpus", "0", "--tracker", "none", "--cpus-per-trial", "2")
    )
    assert status == 0, err
    assert on_ray == two


@pytest.mark.services
def test_an_error_of_one_rank_is_the_trials_error_though_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, _ = reports(tmp_path / "error", 2, monkeypatch, capfd, fault="error")
    assert status == 1
    [error] = load_study("ranks").trials()["error"].to_list()
    assert error.startswith("rank 1 of 2: mine.py:")
    assert error.endswith("ValueError: in rank 1 alone")


def test_processes_of_a_command_are_refused_with_the_way_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(
        "study: c\ntrainable: {command: 'python3 t.py {lr}', metric: 'val_acc={number}'}\nconfig: {lr: 1}\n"
        "processes: 2\nobjectives: [{metric: val_acc, direction: maximize}]\nbudget: {trials: 1}\nconfirm: null\n"
    )
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capfd, "plan", "study.yaml")
    assert status == 2
    assert "processes" in err
    assert "torchrun" in err
