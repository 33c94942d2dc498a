"""`ablate mcp`, called by the client of its protocol's SDK over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import LOCAL, TINY, run
from support.paths import REPOSITORY
from support.processes import have_ended, marked, signal_other_thread

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
EXAMPLE = REPOSITORY / "examples" / "campaign"
READING = ["plan", "status", "front", "trials", "verdict", "enqueue", "pick"]
JUDGING = ["judge_change", "wait_for", "campaign_status", "list_candidates"]
Call = Callable[..., Awaitable[Any]]


def served(folder: Path, *words: str, use: Callable[[Any, Call], Awaitable[None]]) -> None:
    """Let `use` call a server that runs in `folder`; `call(NAME, ...)` returns an answer or the text of an error."""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
    command = ["-m", "ablate", "mcp", *words, *LOCAL]
    server = mcp.StdioServerParameters(command=sys.executable, args=command, cwd=folder, env=environment)

    async def session() -> None:
        async with mcp.Client(server) as client:

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                return answer.content[0].text if answer.is_error else answer.structured_content

            await use(client, call)

    asyncio.run(session())


def keys(value: Any) -> set[str]:
    """Return every name in a JSON value."""
    if isinstance(value, dict):
        return set(value) | {name for each in value.values() for name in keys(each)}
    return {name for each in value for name in keys(each)} if isinstance(value, list) else set()


def require_blind(answer: Any) -> None:
    """Require that no name of an answer is that of seeds or of the test split."""
    assert isinstance(answer, dict), answer
    assert not [name for name in keys(answer) if "seed" in name or name.startswith("test_")], answer
    assert not [number for number in ("1000000", "3000000", "3000001") if number in json.dumps(answer)]


@pytest.mark.services
@pytest.mark.timeout(600)
def test_ten_callers_have_ten_candidates_and_the_planted_gain_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rate of .003 is five standard deviations better; the nine others are worse or do nothing."""
    folder = shutil.copytree(EXAMPLE, tmp_path / "campaign")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    assert run(capfd, "campaign", "open", "night.yaml", *LOCAL)[0] == 0
    rates = [0.003, *(0.01 * place for place in range(1, 10))]

    async def use(client: Any, call: Call) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == [*READING, *JUDGING]
        wrong = await call("judge_change", note="a typo", settings={"config.rate": 1})
        assert "config.rate" in wrong
        assert "judges settings alone" in await call("judge_change", note="no repository", code="HEAD")
        changes = [{"note": f"rate {rate}", "by": "me", "settings": {"config.lr": rate}} for rate in rates]
        asked = await asyncio.gather(*(call("judge_change", **change) for change in changes))
        requests = [answer["request"] for answer in asked]
        assert len(set(requests)) == len(rates)
        assert {answer["state"] for answer in asked} <= {"open", "discard"}
        still = await call("wait_for", request=requests[0], seconds=0)
        assert (still["state"], still["text"][:5], None in still.values()) == ("open", "OPEN:", False)
        ended = await asyncio.gather(*(wait(call, request) for request in requests))
        assert (ended[0]["state"], ended[0]["text"][:10]) == ("keep", "KEEP  gain")
        assert 0.03 < ended[0]["gain"] < 0.07
        assert {answer["state"] for answer in ended[1:]} <= {"discard", "superseded"}
        assert "has no request 99; its last one is" in await call("wait_for", request=99)
        for seconds in (-1, "nan", "inf", "-inf"):
            assert "seconds: a finite number from 0" in await call("wait_for", request=requests[0], seconds=seconds)
        for last in (0, -3):
            assert "last: a whole number from 1" in await call("list_candidates", last=last)
        listed = await call("list_candidates", last=10)
        assert sorted(each["candidate"] for each in listed["candidates"]) == list(range(1, 11))
        assert sorted(each["note"] for each in listed["candidates"]) == sorted(change["note"] for change in changes)
        for answer in (*asked, *ended, listed, await call("campaign_status")):
            require_blind(answer)
        for name in ("trials", "front", "verdict", "pick"):
            assert "is a campaign: call list_candidates" in await call(name, study="night")

    served(folder, "night", use=use)
    assert run(capfd, "campaign", "status", "night")[0] == 0


@pytest.mark.services
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_ends_the_server_and_pauses_its_driver(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "campaign")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    slow = (EXAMPLE / "mine.py").read_text().replace("    yield", "    __import__('time').sleep(1)\n    yield")
    Path("mine.py").write_text(slow)
    assert run(capfd, "campaign", "open", "night.yaml", *LOCAL)[0] == 0
    mark = f"ABLATE_TEST_MCP={tmp_path}"
    monkeypatch.setenv(*mark.split("="))

    def state() -> list[str]:
        return run(capfd, "list")[1].splitlines()[-1].split()

    async def use(_: Any, call: Call) -> None:
        request = (await call("judge_change", note="faster", settings={"config.lr": 0.003}))["request"]
        await call("wait_for", request=request, seconds=0)  # starts the driver
        while state()[-2] == "0":  # no trial is running
            await asyncio.sleep(0.1)
        [driver], [server] = ([p for p, said in marked(mark).items() if f" {w} " in said] for w in ("resume", "mcp"))
        assert os.getpgid(driver) == driver, "a signal to all of the server's group reaches it once"
        signal_other_thread(server, number)
        assert await asyncio.to_thread(have_ended, [server, driver])

    served(folder, "night", use=use)
    assert state()[:2] == ["night", "interrupted"]


async def wait(call: Call, request: int) -> Any:
    """Return the verdict on a request once it is decided."""
    while (answer := await call("wait_for", request=request))["state"] == "open":
        pass
    return answer


@pytest.mark.services
@pytest.mark.timeout(600)
def test_a_search_is_shown_as_it_was_before_its_test_split_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    assert run(capfd, "search", "tiny.yaml", *LOCAL)[0] == 0
    _, out, _ = run(capfd, "status", "tiny", "--json")
    assert '"split": "test"' in out  # what must not be shown is there

    async def use(client: Any, call: Call) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == READING
        answers = {
            "plan": await call("plan", file="tiny.yaml"),
            **{name: await call(name, study="tiny") for name in ("status", "front", "trials")},
            "pick": await call("pick", study="tiny", most=["params=100000"]),
        }
        for answer in answers.values():
            require_blind(answer)
        assert answers["status"]["state"] == "finished"
        assert {row["stage"] for row in answers["trials"]["trials"]} == {"search"}
        assert {row["split"] for rows in answers["front"]["front"].values() for row in rows} == {"validation"}
        [picked] = answers["pick"]["picks"]
        assert picked["stage"] == "search"
        assert "compares nothing" in await call("verdict", study="tiny")
        assert "model.mlp" in await call("enqueue", study="tiny", settings={"model.mlp": 7})
        assert "last: a whole number from 1, and this is 0" in await call("trials", study="tiny", last=0)
        assert "'other' is not in runs" in await call("status", study="other")

    served(tmp_path, use=use)


def test_without_the_package_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    code, _, err = run(capfd, "mcp")
    assert code == 2
    assert "pip install 'ablate-search[mcp]'" in " ".join(err.split())
