"""Every way in which a command can end is the end of its trial, in one line, and nothing of it is left."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import PausedError, RequestError, StudyFileError, TrialError
from ablate.core.config import DatasetFacts
from ablate.core.registry import read_task
from ablate.core.trainable import load_trainable
from ablate.core.trial import BestReport
from ablate.execution.executor import Failure
from ablate.functions.command_words import line_of, words_of
from ablate.functions.output import read_output
from ablate.study import parse_study
from ablate.study.sections import trainable_name
from support.commanded import commanded, losses
from support.commands import LOCAL, run
from support.processes import have_ended, is_alive


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(code: str) -> None:
    Path("train.py").write_text(f"import os, signal, subprocess, sys, time\n{code}\n")


EPOCHS = "for epoch in range(1, 4): print(f'val_loss={1 / epoch}', flush=True)\n"
# a helper in a session of its own that holds the pipe, as a daemon or a TensorBoard does
HELPER = "child = subprocess.Popen(['sleep', '1000'], start_new_session=True); open('pid', 'w').write(str(child.pid))\n"
# the same, which ignores SIGTERM and prints without an end
STUBBORN = (
    "code = \"import os, signal; signal.signal(15, signal.SIG_IGN); open('pid', 'w').write(str(os.getpid()))\\n\"\n"
    "code += \"import time\\nwhile True: print('.', flush=True); time.sleep(0.02)\"\n"
    "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
    "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)\n"
)

ENDS = {
    "exit code": ("raise SystemExit(3)", "the command ended with exit code 3 before it printed val_loss"),
    "exit code 0": ("print('val_los=1')", "the command ended with exit code 0 before it printed val_loss"),
    "os._exit": ("os._exit(7)", "exit code 7"),
    "exception": ("raise ValueError('too wide')", "exit code 1 .*too wide"),
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "the command was ended by SIGSEGV before it printed val_loss"),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM)", "was ended by SIGTERM"),
    "interrupted": ("raise KeyboardInterrupt", "was ended by SIGINT .*KeyboardInterrupt"),
    "a shell's word": ("raise SystemExit(137)", r"exit code 137 \(SIGKILL, as a shell says it\)"),
    "fewer reports": (EPOCHS.replace("4", "3") + "raise SystemExit(4)", "exit code 4 after 2 of 3 reports, before it"),
    "an error behind the last report": (
        EPOCHS + "raise SystemExit(5)",
        r"exit code 5 after its last report \(3 of 3\)",
    ),
    "another form": ("print('val_loss: 1')", "printed val_loss; the pattern of val_loss does not match 'val_loss: 1'"),
    "not a number": ("print('val_loss=1,5')", "took 1 of '1,5'"),
}


@pytest.mark.parametrize("helper", ["", HELPER, STUBBORN], ids=["alone", "helper", "stubborn helper"])
@pytest.mark.parametrize(("code", "says"), ENDS.values(), ids=ENDS.keys())
def test_each_end_is_one_line_whoever_holds_the_pipe(code: str, says: str, helper: str) -> None:
    script(helper + code)
    with pytest.raises(TrialError, match=says) as caught:
        list(commanded())
    assert "\n" not in str(caught.value)
    assert Failure.of(caught.value).kind == ("died" if "ended by SIG" in says and "SIGINT" not in says else "trial")
    if helper:
        assert have_ended([int(Path("pid").read_text())])


def test_a_killed_command_is_tried_again() -> None:
    script("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(TrialError, match="was ended by SIGKILL") as caught:
        list(commanded())
    failure = Failure.of(caught.value)
    assert (failure.kind, failure.message) == ("died", str(caught.value))


def test_a_program_that_cannot_be_started_is_one_line() -> None:
    with pytest.raises(TrialError, match=r"the command cannot be started: .*no-such"):
        list(commanded("./no-such {x}"))


@pytest.mark.parametrize("helper", ["", HELPER])
def test_what_a_command_does_after_its_last_report_is_done(helper: str, folder: Path) -> None:
    script(helper + EPOCHS + "time.sleep(0.5); open('saved', 'w').write('model')")
    assert losses(commanded(checkpoints=folder / "t")) == [[1], [1 / 2], [1 / 3]]
    assert Path("saved").read_text() == "model"
    if helper:
        assert have_ended([int(Path("pid").read_text())])
        assert "ablate: ended what the command had left running: sleep 1000" in read_output(folder / "t")


EARLY = """seed, epochs = int(sys.argv[2]), int(sys.argv[3])
for epoch, loss in enumerate(([.5, .3, .4], [.9, .8, .2, .3, .6])[seed]):
    print(f'val_loss={loss} test_loss={loss + 1}', flush=True)
"""  # of eight epochs: the patience of the first seed ends in its third, that of the second in its fifth


def early(read: str = "last", **more: Any) -> Any:
    script(EARLY)
    metrics = {"val_loss": "val_loss={number}", "test_loss": "test_loss={number}"}
    best = {"best": BestReport(metric="val_loss", direction="minimize")} if read == "best" else {}
    return commanded(metrics=metrics, epochs=8, seeds=(0, 1), **{"trial": best, **more})


def test_a_command_that_ends_by_itself_keeps_its_last_report(folder: Path) -> None:
    """As a function does: those that have ended wait for the others, then the last epoch has the last reports."""
    found = list(early(checkpoints=folder / "t"))
    assert [report.epoch for report in found] == [1, 2, 3, 4, 5, 8]
    assert losses(iter(found)) == [[0.5, 0.9], [0.3, 0.8], [0.4, 0.2], [0.4, 0.3], [0.4, 0.6], [0.4, 0.6]]
    assert [report.final for report in found] == [False] * 5 + [True]
    assert "ended by itself after 5 of 8 epochs" in read_output(folder / "t")
    assert losses(early(checkpoints=folder / "t", attempt=2)) == losses(iter(found)), "from what is kept of it"


@pytest.mark.parametrize(("read", "tested"), [("last", [1.4, 1.6]), ("best", [1.4, 1.2])])
def test_a_confirmed_command_that_ends_by_itself_is_tested_where_its_report_counts(
    folder: Path, read: str, tested: list[float]
) -> None:
    """The best mean over seeds is that of the third report, .3."""
    *_, last = early(read, stage="confirm", checkpoints=folder / "t")
    assert [metrics["test_loss"] for metrics in last.metrics] == pytest.approx(tested)
    variant = {"variant": "complete"} | (
        {"best": BestReport(metric="val_loss", direction="minimize")} if read == "best" else {}
    )
    list(early(checkpoints=folder / "u", trial=variant))
    row = early(stage="confirm", checkpoints=folder / "u", trial=variant | {"evaluates": 4, "source": 4})
    (report,) = row
    assert [metrics["test_loss"] for metrics in report.metrics] == pytest.approx(tested)
    assert report.epoch == (3 if read == "best" else 8)


def test_a_command_that_goes_on_after_its_last_report_is_ended() -> None:
    script(f"open('pid', 'w').write(str(os.getpid()))\n{EPOCHS}time.sleep(1000)")
    assert losses(commanded(place={"grace_seconds": 0.2})) == [[1], [1 / 2], [1 / 3]]
    assert have_ended([int(Path("pid").read_text())])


@pytest.mark.parametrize(("options", "late"), [((*LOCAL, "--grace", "0.2"), False), (LOCAL, True)])
def test_a_command_runs_on_after_its_last_report_for_the_grace_time(
    options: tuple[str, ...], late: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    script(f"{EPOCHS}time.sleep(4)\nopen('late', 'w').close()")
    command = f"command: '{sys.executable} train.py {{x}}', metrics: {{val_loss: 'val_loss={{number}}'}}"
    goal = "objectives: [{metric: val_loss, direction: minimize}]"
    Path("study.yaml").write_text(
        f"study: after\ntrainable: {{{command}}}\nconfig: {{x: {{choices: [1, 2]}}}}\nepochs: 3\n{goal}\n"
        "budget: {trials: 1}\nconfirm: null\n"
    )
    code, _, err = run(capfd, "search", "study.yaml", *options)
    assert (code, Path("late").exists()) == (0, late), err


def test_a_trial_pauses_while_its_command_ends() -> None:
    script(EPOCHS + "open('done', 'w').close(); time.sleep(1000)")
    running = commanded(pause=lambda: Path("done").exists())
    with pytest.raises(PausedError):
        list(running)


def test_a_command_that_closes_its_output_is_waited_for() -> None:
    script(EPOCHS + "sys.stdout.flush(); os.close(1); os.close(2); time.sleep(0.3); open('saved', 'w'); os._exit(0)")
    assert len(losses(commanded())) == 3
    assert Path("saved").exists()


def test_a_confirmation_waits_for_the_test_split_and_not_for_a_helper() -> None:
    script(HELPER + EPOCHS + "time.sleep(0.3); print('test_loss=4'); print('test_loss=5')")
    metrics = {"val_loss": "val_loss={number}", "test_loss": "test_loss={number}"}
    *_, last = commanded(metrics=metrics, stage="confirm")
    assert (last.final, last.metrics[0]["test_loss"]) == (True, 5.0)
    script(EPOCHS + "print('test_loss 4')")
    with pytest.raises(TrialError, match="printed test_loss; the pattern of test_loss does not match 'test_loss 4'"):
        list(commanded(metrics=metrics, stage="confirm"))
    script("print({'eval_loss': '0.5'})")  # as a Trainer of Hugging Face prints
    with pytest.raises(TrialError, match=r"""does not match "{'eval_loss': '0.5'}"\. Its last lines"""):
        list(commanded(metrics={"val_loss": "eval_loss': {number}"}))


def test_a_stopped_trial_ends_its_command_and_what_was_started_in_other_sessions() -> None:
    script(HELPER + "open('own', 'w').write(str(os.getpid())); print('val_loss=1', flush=True); time.sleep(1000)")
    running = commanded()
    next(running)
    pids = [int(Path(name).read_text()) for name in ("pid", "own")]
    assert all(map(is_alive, pids))
    running.close()  # type: ignore[attr-defined]
    assert have_ended(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_a_command_outlives_its_worker(number: int, folder: Path) -> None:
    """Otherwise a helper in another session could write into the folder of the next attempt."""
    script(
        HELPER.replace("'pid'", "'silent'")
        + STUBBORN.replace("'pid'", "'helper'")
        + "open('pid', 'w').write(str(os.getpid()))\n"
        + EPOCHS
        + "time.sleep(1000)"
    )
    code = "from support.commanded import commanded; list(commanded(epochs=4))"
    worker = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    while not Path("pid").exists() or not Path("pid").read_text():
        assert worker.poll() is None
        time.sleep(0.01)
    worker.send_signal(number)
    worker.wait()
    assert have_ended([int(Path(name).read_text()) for name in ("pid", "helper", "silent")])


LAUNCHER = ("SLURM_NTASKS", "RANK", "WORLD_SIZE", "MASTER_PORT")


def test_a_command_is_told_its_trial_and_nothing_of_a_launcher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER:
        monkeypatch.setenv(name, "7")
    script(
        f"names = {('ABLATE_FOLDER', 'ABLATE_TRIAL', 'ABLATE_SEED', *LAUNCHER)}\n"
        "told = repr([os.environ.get(name) for name in names] + sys.argv[1:])\n"
        "open(os.environ['ABLATE_FOLDER'] + '/told', 'w').write(told); print('val_loss=1')"
    )
    command = f"{sys.executable} train.py {{folder}} {{trial}} {{seed}} {{dataset}} {{gpus}} {{stage}} {{epochs}}"
    list(commanded(command, config={}, epochs=1, seeds=(3, 5), checkpoints=folder / "t"))
    for seed in ("3", "5"):
        own = str(folder / "t" / f"seed-{seed}")
        told = [own, "4", seed, None, None, None, None, own, "4", seed, "data", "1", "search", "1"]
        assert Path(own, "told").read_text() == repr(told)


def test_output_is_kept_with_its_seed(folder: Path) -> None:
    script("print(f'10%\\r\\x1b[1m{sys.argv[2]}\\x1b[0m starts', flush=True)\n" + EPOCHS)
    list(commanded(seeds=(0, 1), checkpoints=folder / "t"))
    lines = read_output(folder / "t").splitlines()
    assert [line for line in lines if "[seed 1]" in line] == [
        "[seed 1] 1 starts", "[seed 1] val_loss=1.0", "[seed 1] val_loss=0.5", f"[seed 1] val_loss={1 / 3}",
    ]  # fmt: skip
    assert len(lines) == 8
    list(commanded(seeds=(0,), checkpoints=folder / "u"))
    assert read_output(folder / "u").splitlines()[:2] == ["0 starts", "val_loss=1.0"]


def test_a_value_that_is_not_finite_is_a_diverged_report() -> None:
    script("print('val_loss=1'); print('val_loss=nan' if sys.argv[2] == '1' else 'val_loss=2'); print('val_loss=-inf')")
    found = list(commanded(seeds=(0, 1)))
    assert [report.diverged for report in found] == [(), (False, True), (True, True)]


def test_more_reports_than_epochs_end_the_trial_with_one_line() -> None:
    """The first ones were kept, which are no results."""
    script(EPOCHS.replace("4", "6"))
    with pytest.raises(TrialError, match=r"printed val_loss once more than `epochs: 3` says, in 'val_loss=0.25': let"):
        list(commanded())
    assert len(losses(commanded(epochs=5))) == 5


def test_a_line_is_a_report_while_the_command_is_silent() -> None:
    script(EPOCHS + "time.sleep(1000)")
    running = commanded(epochs=4)
    assert [next(running).metrics[0]["val_loss"] for _ in range(3)] == [1, 1 / 2, 1 / 3]
    running.close()  # type: ignore[attr-defined]


def test_an_inner_bar_is_a_report_for_each_epoch() -> None:
    script(
        "from tqdm import tqdm\n"
        "for epoch in tqdm(range(1, 4), position=0):\n"
        "    inner = tqdm(range(9), position=1, leave=False)\n"
        "    for step in inner: inner.set_postfix_str(f'val_loss={epoch + step / 8}', refresh=True)\n"
    )
    assert losses(commanded()) == [[2], [3], [4]]


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "'; touch x; '", '"`touch x`', "\\", "*", 'a"b', "a'b"])
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_value_stays_one_argument_in_quotes_of_a_shell(value: str, quote: str) -> None:
    """A value in double quotes was run by the shell, and one in single quotes ended them."""
    command = line_of(f"printf %s a{quote}{{x}}{quote}b", {"x": value})
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout == f"a{value}b"
    assert not Path("x").exists()


SIGNS = [
    "ls {x} > log", "ls {x} 2>&1", "ls {x} | tee log", "ls {x} && ls", "ls {x}; ls", "ls {x} &", "ls {x} < in",
    "ls {x} $HOME/a", 'ls {x} "$HOME"', "ls {x} ${HOME}", "ls {x} $(pwd)", "ls {x} `pwd`", "ls {x} ~/a",
    "ls {x} --o=~/a", "ls {x} *.csv", "A=1 ls {x}", "ls {x} # why",
]  # fmt: skip
PLAIN = [
    "ls '$HOME' {x}",
    "ls 'a|b' {x}",
    'ls "a;b" {x}',
    "ls \\* {x}",
    "ls http://h?a=1&b=2 {x}",
    "ls a~b [1,2] f(1) {x?--y}",
]


def checked(command: str, **more: object) -> None:
    named = json.dumps({"command": command, "metric": "val_loss={number}", **more})
    parse_study(f"study: s\ntrainable: {named}\nconfig: {{x: 1}}\nobjectives: [{{metric: val_loss}}]\nconfirm: null\n")


@pytest.mark.parametrize("command", SIGNS)
def test_a_sign_of_a_shell_needs_one(command: str) -> None:
    with pytest.raises(
        StudyFileError, match=r"^study:2: trainable\.command: the command runs without a shell: add --s"
    ):
        checked(command)
    checked(command.replace("${HOME}", "${{HOME}}"), shell=True)


@pytest.mark.parametrize("command", PLAIN)
def test_what_a_shell_would_not_obey_is_an_argument(command: str) -> None:
    checked(command)


MISSING = [
    "python no.py {x}",
    "python -u no.py {x}",
    "sh no.sh {x}",
    f"{sys.executable} {{x?-u}} no.py",
    "env A=1 python no.py {x}",
]


@pytest.mark.parametrize("command", MISSING)
def test_a_script_that_is_not_there_is_refused_before_anything_runs(command: str) -> None:
    trainable = load_trainable(trainable_name({"command": command, "metrics": {"val_loss": "{number}"}}))
    with pytest.raises(RequestError, match=r"the command runs 'no.(py|sh)', and there is no such file in /"):
        trainable.check(["config.x"], confirms=False)
    Path("no.py").touch()
    Path("no.sh").touch()
    trainable.check(["config.x"], confirms=False)


@pytest.mark.parametrize("activated", [True, False])
def test_python_is_that_of_ablate_where_no_environment_is_activated(
    activated: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to("/bin/true")
    (folder / "bin" / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    monkeypatch.setattr(sys, "prefix", str(Path(sys.executable).parents[1]))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    if activated:
        monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    script("print(f'val_loss=1')")
    found = load_trainable(trainable_name({"command": "python train.py", "metrics": {"val_loss": "{number}"}}))
    said = [
        line for line in found.remarks(read_task({"task": "data"}), DatasetFacts(), None, None) if "`python`" in line
    ]
    assert said == ([] if activated else [
        f"`python` is {Path(sys.executable).parent}/python, as ablate itself is, because no environment is activated"
    ])  # fmt: skip
    if activated:  # /bin/true prints nothing
        with pytest.raises(TrialError, match="exit code 0 before"):
            list(commanded("python train.py", epochs=1))
    else:
        assert losses(commanded("python train.py", epochs=1)) == [[1]]


CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "on": ("{a?--a} {b?--b}", {"a": True, "b": False}, ["--a"]),
    "numbers": ("{a?--a} {b?--b}", {"a": 0, "b": 1}, ["--b"]),
    "none": ("{a?--a}{b?--b}", {"a": None, "b": None}, []),
    "part of a word": ("--a={a?yes}", {"a": False}, ["--a="]),
    "a value that begins with a minus": ("--a {a} --b {b}", {"a": -0.5, "b": "-x y"}, ["--a=-0.5", "--b=-x y"]),
    "other values": ("--a {a} -b {b} {c}", {"a": 0.5, "b": -1, "c": "-z"}, ["--a", "0.5", "-b", "-1", "-z"]),
    "formatted": ("--a {a:.2f} --b={b}", {"a": -0.123, "b": "-1"}, ["--a=-0.12", "--b=-1"]),
    "braces": ("{{a}} {a}", {"a": 1}, ["{a}", "1"]),
    "an empty value": ("--a {a}", {"a": ""}, ["--a", ""]),
}


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize(("words", "config", "expected"), CASES.values(), ids=CASES.keys())
def test_the_words_of_a_command(words: str, config: dict[str, Any], expected: list[str], shell: bool) -> None:
    script("open('seen', 'w').write(repr(sys.argv[1:])); print('val_loss=1')")
    list(commanded(f"{sys.executable} train.py {words}", config=config, epochs=1, shell=shell))
    assert Path("seen").read_text() == repr(expected)


@pytest.mark.parametrize("value", [-5e-5, -1e20, -5e-324, -1.7976931348623157e308, -0.1, -1e16, -1 / 3])
def test_a_negative_number_is_no_option_to_argparse(value: float) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", type=float)
    parser.add_argument("place", type=float)
    found = parser.parse_args(words_of("-b {x} {x}", {"x": value}))
    assert (found.b, found.place) == (value, value)


def test_a_switch_needs_true_or_false() -> None:
    with pytest.raises(TrialError, match=r"the command's switch \{a\?…\} needs true or false, and a is 'no'"):
        list(commanded("ls {a?--a}", config={"a": "no"}))
