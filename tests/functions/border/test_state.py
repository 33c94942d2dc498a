"""What a trial changes of its process reaches no other trial, no other seed and not the driver."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate.api import load_study
from support.commands import LOCAL, RAY, run

CHANGES = {  # by the value of config["way"]: what the code does before its loop
    "folder": "import tempfile, shutil; t = tempfile.mkdtemp(); os.chdir(t); shutil.rmtree(t)",
    "arguments": "sys.argv[:] = ['other', '--lr', '3']; sys.path.clear()",
    "environment": "os.environ.clear(); os.environ['OMP_NUM_THREADS'] = '7'",
    "umask": "os.umask(0o777)",
    "handlers": "signal.signal(signal.SIGTERM, lambda *a: None); signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "alarm": "signal.signal(signal.SIGALRM, lambda *a: sys.exit(9)); signal.setitimer(signal.ITIMER_REAL, 0.4)",
    "streams": "sys.stdout = sys.stderr = None",
    "closed": "sys.stdout.close(); sys.stderr.close()",
    "numpy": "np.seterr(all='raise')",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "type": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
    "inference": "torch.inference_mode().__enter__()",
    "autocast": "torch.autocast('cpu').__enter__()",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "threads": "torch.set_num_threads(2)",
    "interop": "torch.set_num_interop_threads(1)",
    "method": "torch.multiprocessing.set_start_method('spawn')",
    "group": "import torch.distributed as d; d.init_process_group('gloo', init_method='file://' + run_file(), rank=0,"
    " world_size=1)",
    "recursion": "sys.setrecursionlimit(120)",
    "hooks": "torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: out * 2)",
    "dump": "import faulthandler; faulthandler.dump_traceback_later(0.4, exit=True)",
    "loop": "import asyncio; loop = asyncio.new_event_loop(); loop.close(); asyncio.set_event_loop(loop)",
    "logging": "import logging; logging.disable(50); logging.getLogger('own').addHandler(logging.StreamHandler())",
    "thread": "import threading; threading.Thread(target=time.sleep, args=(50,), daemon=True).start()",
    "child": "import subprocess; subprocess.Popen(['sleep', '50'], start_new_session=True)",
    "random": "import random; random.seed(1); np.random.seed(1); torch.manual_seed(1)",
}
HEAD = """
import os, signal, sys, tempfile, time
import numpy as np
import torch
from torch import nn

def run_file():
    return tempfile.mktemp()

def train(config, run):
    import asyncio
    assert not asyncio.get_event_loop().is_closed()
    data = open("data.txt").read()  # the working directory is what it was
    assert len(sys.argv) == 1 and sys.argv[0].endswith("mine.py"), sys.argv
    model = run.build(nn.Linear, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        loss = model(torch.randn(8, 4)).square().mean() + float(np.random.rand()) * 1e-3
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print("an epoch")
        if epoch == 3:
            change(config["way"])
        yield {"val_loss": loss.item()}

def change(way):
    pass
"""
STUDY = """\
study: changes
trainable: mine:train
config:
  way: {{choices: [{ways}]}}
epochs: 3
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: random}}
start: [{starts}]
scheduler: {{name: none}}
budget: {{trials: {count}}}
confirm: null
"""


def write(folder: Path, changes: Sequence[str]) -> None:
    """Write the study, in which a trial that changes nothing follows each one that does, and its code."""
    code = HEAD
    for way, statement in CHANGES.items():
        code += f"    if way == {way!r}:\n        {statement}\n"
    (folder / "mine.py").write_text(code)
    (folder / "data.txt").write_text("1")
    ways = [f"fine{i}" for i in range(len(changes) + 1)]
    order = [ways[0], *(each for pair in zip(changes, ways[1:], strict=True) for each in pair)]
    starts = ", ".join(f"{{config.way: {each}}}" for each in order)
    text = STUDY.format(ways=", ".join(order), starts=starts, count=len(order))
    (folder / "study.yaml").write_text(text)


def driver() -> dict[str, object]:
    """Return what a user's code could have changed of this process."""
    return {
        "folder": os.getcwd(),
        "arguments": list(sys.argv),
        "environment": os.environ.get("PATH"),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)],
        "numpy": np.geterr(),
        "type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "recursion": sys.getrecursionlimit(),
    }


@pytest.mark.services
@pytest.mark.parametrize(
    ("executor", "changes"),
    [
        pytest.param(LOCAL, [*CHANGES], id="local"),
        pytest.param(RAY, ["folder", "streams", "type", "hooks", "thread", "child"], id="ray"),
        pytest.param(RAY, [*CHANGES], id="ray-all", marks=pytest.mark.slow),
    ],
)
def test_what_one_trial_changes_of_its_process_no_other_trial_sees(
    executor: tuple[str, ...],
    changes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(tmp_path, changes)
    monkeypatch.chdir(tmp_path)
    before = driver()
    code, out, err = run(capfd, "search", "study.yaml", *executor)
    assert code == 0, err
    assert driver() == before
    trials = load_study("changes").trials()
    errors = {row["config.way"]: row["error"] for row in trials.iter_rows(named=True) if row["error"]}
    assert not errors, errors
    values = {row["config.way"]: row["val_loss"] for row in trials.iter_rows(named=True)}
    assert len(values) == 2 * len(changes) + 1
    assert len(set(values.values())) == 1, values
    assert "an epoch" not in out + err, "the terminal shows progress only"
    said = [line for line in caplog.messages if "gets a new process" in line]
    assert len(said) == 1, said
    assert "Report: " in out


@pytest.mark.services
def test_each_trial_imports_from_the_folder_that_it_names_and_sets_have_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for k in range(3):
        (tmp_path / f"variant{k}").mkdir()
        (tmp_path / f"variant{k}" / "network.py").write_text(f"size = {k}\n")
    (tmp_path / "mine.py").write_text(
        "import sys\n\ndef train(config, run):\n    sys.path.insert(0, f'variant{config[\"variant\"]}')\n"
        "    import network\n    names = ''.join({'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'})\n"
        "    return {'val_loss': network.size, 'val_order': int.from_bytes(names.encode()[:6])}\n"
    )
    (tmp_path / "study.yaml").write_text(
        "study: variants\ntrainable: mine:train\nconfig: {variant: {choices: [0, 1, 2]}}\nbudget: {trials: 3}\n"
        "confirm: null\nsampler: {name: grid}\nobjectives: [{metric: val_loss, direction: minimize}]\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    trials = load_study("variants").trials()
    assert trials["val_loss"].to_list() == trials["config.variant"].to_list()
    assert trials["val_order"].n_unique() == 1, "a set has the same order in each process"


def test_variables_of_a_launcher_do_not_reach_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("SLURM_NTASKS", "SLURM_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef train(config, run):\n    config['x']\n"
        f"    return {{'val_loss': sum(name in os.environ for name in {names!r}) + 10 * ('OWN' in os.environ)}}\n"
    )
    (tmp_path / "study.yaml").write_text(
        "study: launched\ntrainable: mine:train\nconfig: {x: {float: [0, 1]}}\nbudget: {trials: 1}\nconfirm: null\n"
        "objectives: [{metric: val_loss, direction: minimize}]\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in (*names, "OWN"):
        monkeypatch.setenv(name, "1")
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert load_study("launched").trials()["val_loss"].to_list() == [10.0]
