"""Measures the live page of `ablate ui` on a study of many trials: first view, updates, and when results are there.

    python benchmarks/live_page.py                     # 10,000 trials of 10 reports
    python benchmarks/live_page.py --trials 2000 --settings 40 --objectives 3
    python benchmarks/live_page.py --trials 1000 --home FOLDER   # keep the ledger, and use it again

A study that trains nothing is written into a ledger, then `ablate ui` is started in a new process and asked as a
browser does. "First view" is the first answer of a server that knows nothing of the study. "Update" is the
answer to a poll, and to a poll after a request of a user has changed the ledger: the slowest of ten, while importances
and newer results are computed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import scale
from record import RESULTS, ROOT, append_csv, with_origin

FILE = RESULTS / "live_page.csv"
TOKEN = "benchmark-of-the-live-page"
PLACE = "/studies/scale/"


def write_ledger(asked: argparse.Namespace, home: Path) -> None:
    """Write a study of a number of trials, 64 at a time, into a ledger in `home`."""
    sys.modules["scale"] = scale
    home.mkdir(parents=True)
    fields = {"reports": 10, "workers": 64, "sampler": "random", "scheduler": "none", "confirm": 0, "seconds": 0.0}
    fields |= {"settings": asked.settings, "objectives": asked.objectives, "ledger": None}
    made = argparse.Namespace(trials=[asked.trials], tracker="none", sync_every=asked.trials, parts=[], **fields)
    scale.measure(made, asked.trials, home, scale.Meter())


class Client:
    """Asks a server, and counts seconds."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> tuple[float, str]:
        """Return the seconds of an answer and its text."""
        begun = time.perf_counter()
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        line.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = line.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return time.perf_counter() - begun, text

    def version(self) -> str:
        """Return the version of the page that the server shows."""
        found: str = json.loads(self.get(f"{PLACE}state")[1])["version"]
        return found


class Shown(dict[str, float]):
    """Seconds by what was asked, each printed as it is measured."""

    def __setitem__(self, name: str, seconds: float) -> None:
        super().__setitem__(name, seconds)
        print(f"{name:26} {seconds:8.3f} s", flush=True)


def wait_for(condition: Callable[[], bool]) -> float:
    """Return the seconds until a condition holds, which is tested every half second."""
    begun = time.perf_counter()
    while not condition():
        time.sleep(0.5)
    return time.perf_counter() - begun


def measure(runs: Path) -> dict[str, float]:
    """Start the server on a folder of studies, and return seconds by what was asked."""
    from ablate.driver.requests import enqueue
    from ablate.studies.locations import Locations

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "ablate", "ui", "--runs-dir", str(runs), "--port", str(port), "--mlflow", "none"]
    server = subprocess.Popen(words, env=os.environ | {"ABLATE_UI_TOKEN": TOKEN}, stdout=subprocess.PIPE)
    client, found = Client(port), Shown()
    try:
        assert server.stdout is not None
        server.stdout.readline()
        found["first view of the list"], _ = client.get("/")
        found["first view of the study"], _ = client.get(PLACE)
        found["results drawn after"] = wait_for(lambda: client.version() != "")
        for name, path in (("list", "/state"), ("study", f"{PLACE}state"), ("whole page", PLACE)):
            found[f"update of the {name}"] = max(client.get(path)[0] for _ in range(10))
        former = client.version()
        enqueue("scale", Locations(runs_dir=runs), ["config.width=9"])
        answers = [client.get(path)[0] for _ in range(10) for path in (f"{PLACE}state", PLACE)]
        found["update after a change"] = max(answers)
        found["trial"] = max(client.get(f"{PLACE}trials/data/{number}")[0] for number in range(10))
        found["newer results after"] = wait_for(lambda: client.version() != former)
    finally:
        server.kill()
        server.wait()
    return found


def main() -> None:
    """Measure, print, and add the rows to the CSV if `--write` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--settings", type=int, default=5)
    parser.add_argument("--objectives", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--home", type=Path, help="folder of the study scale, written if it is missing")
    parser.add_argument("--write", action="store_true", help=f"append the rows to {FILE.relative_to(ROOT)}")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = asked.home or Path(folder)
        if not (runs / "scale").exists():
            write_ledger(asked, runs / "scale")
        found = measure(runs)
    if asked.write:
        same = {name: getattr(asked, name) for name in ("trials", "settings", "objectives")}
        rows = [same | {"asked": name, "seconds": f"{value:.3f}"} for name, value in found.items()]
        append_csv(FILE, with_origin(rows, ("starlette", "uvicorn", "polars", "altair")))


if __name__ == "__main__":
    main()
