"""`ablate ui`'s own pages: what they show is what the commands print, and nobody changes or reaches more than that."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ablate.studies.live import Views, listening, live_server
from ablate.studies.locations import Locations
from ablate.studies.report import rebuild
from support.commands import refused, succeed
from support.page_reader import Reader
from support.processes import signal_other_thread
from support.status_driver import Driver

TOKEN = "0123456789-abcdefgh"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = "<script>alert('x')</script>"
Answer = tuple[int, Message, str]
Ask = Callable[..., Answer]


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """Return status, headers and text of an answer; the path goes to the server as it is."""
    line = HTTPConnection("127.0.0.1", port, timeout=60)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    line.close()
    return found


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A study on two data sets: three trials have ended, and the fourth failed."""
    found = Driver(tmp_path)
    found.run(3)
    failing = found.search.next_trial()
    assert failing is not None
    found.search.fail(failing.key, f"ValueError: {HOSTILE}", detail=f"Traceback:\n{HOSTILE}")
    found.writer.set_mlflow_run(failing.key, "run7")
    return found


@pytest.fixture
def get(driver: Driver) -> Iterator[Ask]:
    """Return a function that asks the pages of the driver's studies, with their token, for a path."""
    views = Views(Locations(runs_dir=driver.runs), patience=None, rest=0.0)
    with (
        listening("127.0.0.1", 0) as listener,
        live_server(views, listener, token=TOKEN, mlflow="https://ml.example/x", root_path="/lab"),
    ):
        port = listener.getsockname()[1]
        yield lambda path, method="GET", **headers: ask(port, path, method, **(BEARER | headers))


def until(condition: Callable[[], Any]) -> Any:
    """Return the first true value of a condition, which a thread of the server makes true."""
    deadline = time.monotonic() + 200
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_json_is_what_the_commands_print(get: Ask, driver: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    commands = {
        "/api/studies": ["list"],
        "/api/studies/looked": ["status", "looked"],
        "/api/studies/looked/trials/1?dataset=digits": ["trial", "looked", "1", "--dataset", "digits"],
    }
    for path, words in commands.items():
        out = succeed(capfd, *words, "--json", "--runs-dir", str(driver.runs))
        status, headers, text = get(path)
        assert (status, headers.get_content_type()) == (200, "application/json")
        assert json.loads(text) == json.loads(out)
    assert get("/api/studies")[2] == get("/lab/api/studies")[2]


def test_the_page_of_a_study_is_its_report_and_follows_the_ledger(get: Ask, driver: Driver) -> None:
    place = "/studies/looked/"

    def page() -> Reader:
        return Reader(get(place)[2])

    def written() -> list[list[str]]:
        _, path = rebuild("looked", Locations(runs_dir=driver.runs))
        return Reader(path.read_text()).rows

    assert until(lambda: (shown := page()).rows == written() and "They are being computed" not in shown.text)
    report = driver.runs / "looked" / "report"
    for name in sorted({link for link in page().links if link and "/" not in link and re.search(r"\.\w+$", link)}):
        assert get(place + name)[2] == (report / name).read_text() if not name.endswith("pdf") else True, name
    assert "trials/digits/0" in page().links
    state, tag = json.loads(get(f"{place}state")[2]), get(place)[1]["ETag"]
    status, _, text = get(place, **{"If-None-Match": tag})
    assert (status, text) == (304, "")
    assert "digits: 2 complete; more: 1 complete, 1 fail" in state["lines"][0]
    driver.run(1)
    newer = json.loads(get(f"{place}state")[2])
    assert "digits: 3 complete" in newer["lines"][0]
    until(lambda: json.loads(get(f"{place}state")[2])["version"] != state["version"])
    until(lambda: page().rows == written())
    assert "looked: running" in page().text


def test_a_trial_shows_what_is_known_of_it_as_text(get: Ask) -> None:
    status, headers, text = get("/studies/looked/trials/more/1")
    assert status == 200
    assert HOSTILE not in text
    page = Reader(text)
    assert page.text.count(HOSTILE) == 3, "the error, its event and the traceback"
    assert "ablate retry looked 1 --dataset more --runs-dir" in page.text
    assert "ablate enqueue looked model.width=" in page.text
    assert "https://ml.example/x/#/runs/run7" in page.links
    assert "unsafe-inline" not in re.sub(r"style-src [^;]*", "", headers["Content-Security-Policy"])
    assert "ablate retry" not in get("/studies/looked/trials/digits/0")[2]


def test_a_folder_with_another_study_s_ledger_is_told_in_the_list(get: Ask, driver: Driver) -> None:
    (driver.runs / "moved").mkdir()
    shutil.copy(driver.runs / "looked" / "ledger.sqlite", driver.runs / "moved" / "ledger.sqlite")
    page = Reader(get("/")[2])
    assert "moved: the ledger of 'moved' holds no study of this name" in page.text
    assert "studies/looked/" in page.links


ABSENT = [
    "/studies/none/", "/studies/looked/ledger.sqlite", "/studies/looked/ledger.json", "/studies/looked/index.html",
    "/studies/../", "/studies/%2e%2e/", "/studies/..%2flooked/", "/studies/looked%00/", "/studies//etc/passwd",
    "/studies/looked/..%2f..%2fetc%2fpasswd", "/assets/..%2fpage.css", "/assets/page.css", "/api/studies/none",
    "/studies/looked/trials/digits/77", "/studies/looked/trials/none/0", "/studies/looked/trials/digits/-1", "/none",
]  # fmt: skip


@pytest.mark.parametrize("path", ABSENT)
def test_what_no_list_names_is_absent(path: str, get: Ask) -> None:
    status, _, text = get(path)
    assert status == 404
    assert text.count("\n") <= 1
    assert "Traceback" not in text


def test_only_who_has_the_token_is_answered_and_nothing_is_changed(get: Ask, driver: Driver) -> None:
    refused = {"Authorization": "Bearer x"}
    paths = ("/", "/state", "/api/studies", "/studies/looked/", "/assets/live.js", "/none")
    assert {get(path, **refused)[0] for path in paths} == {401}
    assert {get(path, Host=name)[0] for path in paths for name in ("evil.example", "evil.example:80", "")} == {403}
    assert get("/", Host="localhost:1")[0] == 200
    before = (driver.runs / "looked" / "ledger.sqlite").read_bytes()
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert {get(path, method)[0] for path in paths} == {403}, method
    assert get("/api/2.0/mlflow/runs/search", "POST")[0] == 404
    assert get("/", "HEAD")[2] == ""
    assert (driver.runs / "looked" / "ledger.sqlite").read_bytes() == before
    status, headers, text = get(f"/lab/?token={TOKEN}&a=%22%3E", **refused)
    assert (status, 'url=?a=%22%3E"' in text) == (200, True)
    cookie = headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert get("/", **refused, Cookie=cookie.partition(";")[0])[0] == 200


@pytest.mark.parametrize(
    ("words", "token", "told"),
    [
        (["--host", "0.0.0.0"], None, "only if they know a token. Set ABLATE_UI_TOKEN"),
        (["--host", "0.0.0.0"], "short", "ABLATE_UI_TOKEN: the token must have at least 16 characters"),
        (["--token-file", "none"], None, "--token-file none: cannot be read (No such file or directory)"),
        (["--mlflow", "yes"], None, "--mlflow yes: must be auto, none, or an address"),
        (["--host", "192.0.2.1"], TOKEN, "192.0.2.1:5000: "),
    ],
)
def test_a_wrong_start_is_one_line(
    words: list[str], token: str | None, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ABLATE_UI_TOKEN", raising=False)
    if token:
        monkeypatch.setenv("ABLATE_UI_TOKEN", token)
    assert told in " ".join(refused(capfd, "ui", *words).split())


def test_the_command_follows_a_study_and_ends_with_ctrl_c(driver: Driver) -> None:
    with listening("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
        words = [sys.executable, "-m", "ablate", "ui", "--runs-dir", str(driver.runs), "--port", str(port)]
        taken = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert taken.returncode == 2
        assert f":{port}: Address already in use" in " ".join((taken.stdout + taken.stderr).split())
    environment = os.environ | {"ABLATE_UI_TOKEN": TOKEN}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"Studies: http://127.0.0.1:{port}/ (Ctrl-C ends it)\n"

            def state() -> str:
                line: str = json.loads(ask(port, "/studies/looked/state", **BEARER)[2])["lines"][0]
                return line

            assert "digits: 2 complete" in state()
            driver.run(1)
            assert "digits: 3 complete" in state()
            assert "running" in state()
            driver.leave()
            assert "no driver is running" in state()
            signal_other_thread(server.pid, signal.SIGINT)  # the kernel may choose any
            assert (server.wait(60), server.stdout.read()) == (0, "")
        finally:
            server.kill()
