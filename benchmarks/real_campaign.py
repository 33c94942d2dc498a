"""A campaign of thirty candidates on a network that trains: in its own repository, two at a time on Ray, two kills.

    python benchmarks/real_campaign.py FOLDER      # half an hour on 2 cores; writes results/campaign.csv

The repository in FOLDER trains an MLP of NumPy on scikit-learn's digits. Five candidates have a planted gain, one
crashes, one changes the metric, two copy an earlier candidate with another comment, and the others change only which
random numbers the weights begin with. Each is a commit on the champion of its moment. A superseded candidate is made
again on the new champion. During the second and the sixth call the whole process group is killed by SIGKILL once runs
are in progress, and the same command is typed again. The start and the last champion are then trained on thirty fresh
seeds, without `ablate`: their paired difference is the truth with which the closing is compared.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from record import RESULTS, write_csv

from ablate.results.statistics.intervals import t_interval

DATA = """\
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)


def accuracy(predicted, first, last):
    return float((predicted == y[first:last]).mean())
"""
TRAIN = """\
# {comment}
import sys

import numpy as np
from data import accuracy, x, y

RATE, MOMENTUM, WIDTH, SCALE, STANDARDISED, SALT = {rate}, {momentum}, {width}, {scale}, {standardised}, {salt}
rng = np.random.default_rng([int(sys.argv[1]), SALT])
x = x / 16
x = (x - x[:900].mean(0)) / (x[:900].std(0) + 0.1) if STANDARDISED else x
{extra}one = SCALE * rng.standard_normal((64, WIDTH))
two = SCALE * rng.standard_normal((WIDTH, 10))
steps = [np.zeros_like(one), np.zeros_like(two)]
for epoch in range(6):
    for batch in rng.permutation(900).reshape(-1, 30):
        hidden = np.maximum(x[batch] @ one, 0)
        scores = hidden @ two
        p = np.exp(scores - scores.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - np.eye(10)[y[batch]]) / len(batch)
        inner = (error @ two.T) * (hidden > 0)
        for weights, step, slope in ((two, steps[1], hidden.T @ error), (one, steps[0], x[batch].T @ inner)):
            step *= MOMENTUM
            step -= RATE * slope
            weights += step


def predict(first, last):
    return (np.maximum(x[first:last] @ one, 0) @ two).argmax(1)


print(f"val_accuracy={{accuracy(predict(900, 1350), 900, 1350):.6f}}")
print(f"test_accuracy={{accuracy(predict(1350, 1797), 1350, 1797):.6f}}")
"""
STUDY = """\
study: digits
trainable:
  command: {python} train.py {{seed}}
  metrics: {{val_accuracy: "val_accuracy={{number}}", test_accuracy: "test_accuracy={{number}}"}}
epochs: 1
objectives: [{{metric: val_accuracy, direction: maximize}}]
campaign: {{guard: [data.py], expect: 30, close: {{replicates: 8}}}}
"""
START: Mapping[str, Any] = {
    "rate": 0.1, "momentum": 0.5, "width": 12, "scale": 0.1, "standardised": False, "salt": 0, "comment": "begin",
    "extra": "",
}  # fmt: skip
GAINS: Mapping[int, Mapping[str, Any]] = {
    4: {"width": 24}, 9: {"rate": 0.3}, 15: {"standardised": True}, 20: {"momentum": 0.8}, 26: {"width": 48},
}  # fmt: skip
CRASH, METRIC, COPIES, KILLED, CANDIDATES = 12, 18, {7: 6, 23: 22}, (1, 5), 30
TRUTH = range(900_000, 900_030)
SHOWN = ("state", "reason", "runs", "gain")


def main() -> None:
    """Run the campaign in an empty folder, and write its candidates and its end."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_version(START)
    Path("data.py").write_text(DATA)
    Path("study.yaml").write_text(STUDY.format(python=shlex.quote(sys.executable)))
    Path(".gitignore").write_text("runs/\n__pycache__/\n")
    git("init", "--quiet")
    settings, begun = dict(START), time.monotonic()
    first = commit()
    say("campaign", "open", "study.yaml")
    rows: list[dict[str, Any]] = []
    waiting, calls = list(range(1, CANDIDATES + 1)), 0
    while waiting:
        pair, waiting = waiting[:2], waiting[2:]
        found = judge_all(pair, settings, killed=calls in KILLED)
        calls += 1
        for number, verdict in zip(pair, found, strict=True):
            print(
                number,
                kind_of(number),
                {name: verdict.get(name) for name in ("state", "reason", "runs", "gain")},
                flush=True,
            )
            if verdict["state"] == "superseded":
                waiting.insert(0, number)
            if verdict["state"] == "keep":
                settings |= change_of(number)
            rows.append(row_of(number, verdict))
    say("campaign", "close", "digits")
    status = json.loads(say("campaign", "status", "digits", "--json"))
    last = str(status["champion"].get("revision") or first)
    truth = t_interval([measure(last, seed) - measure(first, seed) for seed in TRUTH])
    closing = status["closing"] or {}
    end = {"kind": "closing", "state": "closed", "runs": status["spent"]["runs"]}
    rows.append(end | {name: closing.get(own) for name, own in (("gain", "mean"), ("low", "low"), ("high", "high"))})
    rows.append({"kind": "truth", "state": "30 fresh seeds", "gain": truth.mean, "low": truth.low, "high": truth.high})
    names = ("candidate", "kind", "state", "reason", "runs", "gain", "low", "high", "allowed")
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes, {calls} calls")
    write_csv(RESULTS / "campaign.csv", [{name: row.get(name) for name in names} for row in rows], packages=("ray",))


def kind_of(number: int) -> str:
    """Return what is planted in a candidate."""
    kinds = {CRASH: "crash", METRIC: "metric", **dict.fromkeys(GAINS, "gain"), **dict.fromkeys(COPIES, "copy")}
    return kinds.get(number, "no effect")


def change_of(number: int) -> dict[str, Any]:
    """Return the settings of the script that a candidate changes."""
    if number in GAINS:
        return {**GAINS[number], "comment": f"candidate {number}"}
    if number == CRASH:
        return {"extra": 'raise RuntimeError("planted")\n'}
    return {"salt": COPIES.get(number, number), "comment": f"candidate {number}"}


def judge_all(numbers: Sequence[int], settings: Mapping[str, Any], *, killed: bool) -> list[dict[str, Any]]:
    """Commit candidates on the champion and judge them in one call; those that change the metric alone."""
    found: dict[int, dict[str, Any]] = {}
    revisions: dict[int, str] = {}
    for number in numbers:
        write_version({**settings, **({} if number == METRIC else change_of(number))})
        Path("data.py").write_text(DATA + ("# a changed metric\nx = x + 0\n" if number == METRIC else ""))
        revisions[number] = commit()
        if number == METRIC:
            done = subprocess.run(
                ablate("judge", "digits", "--code", revisions[number]), capture_output=True, text=True
            )
            assert done.returncode == 2, done.stderr
            found[number] = {"state": "refused", "reason": done.stderr.strip().splitlines()[-1]}
    Path("data.py").write_text(DATA)
    asked = [number for number in numbers if number not in found]
    words = [word for number in asked for word in ("--code", revisions[number])]
    command = ablate("judge", "digits", *words, "--note", f"candidates {', '.join(map(str, asked))}", "--json")
    if killed:
        kill_during(command)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3, 4), done.stderr
    values = json.loads(done.stdout)
    found |= dict(zip(asked, values if isinstance(values, list) else [values], strict=True))
    return [found[number] for number in numbers]


def kill_during(command: Sequence[str]) -> None:
    """Start a command, and kill it with all its processes once a run is in progress."""
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        status = json.loads(say("status", "digits", "--json"))
        if any(states.get("RUNNING") for states in status["trials"].values()):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print("killed:", shlex.join(command), flush=True)
            return
    print("ended before it could be killed", flush=True)


def measure(revision: str, seed: int) -> float:
    """Return the test accuracy of a version on a seed, trained without `ablate`."""
    git("checkout", "--quiet", revision)
    done = subprocess.run([sys.executable, "train.py", str(seed)], check=True, capture_output=True, text=True)
    found = re.search(r"test_accuracy=(\S+)", done.stdout)
    assert found is not None
    return float(found[1])


def row_of(number: int, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate's row of the table."""
    return {"candidate": number, "kind": kind_of(number), **verdict}


def write_version(settings: Mapping[str, Any]) -> None:
    """Write the script with these settings."""
    Path("train.py").write_text(TRAIN.format(**settings))


def commit() -> str:
    """Commit the folder and return the revision."""
    git("add", "--all")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(*identity, "commit", "--quiet", "--allow-empty", "--message", "a candidate")
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    """Run git and return what it prints."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def ablate(*words: str) -> list[str]:
    """Return the command line of ablate."""
    return [sys.executable, "-m", "ablate", *words]


def say(*words: str) -> str:
    """Run ablate and return what it prints; its output shows why it failed."""
    done = subprocess.run(ablate(*words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    main()
