"""A headless Chromium that a test drives through the DevTools protocol, over a pipe: no port, no further package."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
           "--disable-background-networking", "--disable-sync", "--disable-component-update"]  # fmt: skip
SECONDS = 120.0


class Page:
    """One tab. `events` are the protocol's events so far; `errors` are what went wrong."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._count = write, read, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of one command of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._read, 2**20)
            answer, _, self._buffer = self._buffer.partition(b"\0")
            found = json.loads(answer)
            if found.get("id") == self._count:
                assert "error" not in found, found
                return dict(found["result"])
            self.events.append(found)

    def open(self, path: Path, *, width: int = 1400, scripts: bool = True) -> None:
        """Load a file and wait until its figures are drawn, if scripts may run."""
        scheme = [{"name": "prefers-color-scheme", "value": "light"}]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until(lambda: self.value("document.readyState === 'complete'"))
        if scripts:
            self.until(lambda: self.value("[...document.querySelectorAll('[data-figure]')].every((box) => box.view)"))

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, *, dragged: bool = False) -> None:
        """Send one event of the mouse: Moved, Pressed or Released."""
        pressed = {"button": "left", "buttons": 1, "clickCount": 1} if dragged or kind != "Moved" else {}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **pressed)

    @property
    def errors(self) -> list[Any]:
        """What the page reported as errors: exceptions, refused scripts, and errors in its console."""
        found = [e["params"] for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        said = (e["params"] for e in self.events if e.get("method") == "Runtime.consoleAPICalled")
        return found + [each for each in said if each["type"] == "error"]

    @property
    def requests(self) -> list[str]:
        """The addresses that were requested, without data: and blob: addresses."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        found = [str(event["params"]["request"]["url"]) for event in sent]
        return [url for url in found if not url.startswith(("data:", "blob:"))]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Hold a Chromium with its files in `profile`; it ends with the block."""
    (read_there, write), (read, write_there) = os.pipe(), os.pipe()

    def take_pipes() -> None:
        os.dup2(read_there, 3 + 100)
        os.dup2(write_there, 4 + 100)
        os.dup2(103, 3)
        os.dup2(104, 4)

    process = subprocess.Popen(
        [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}"],
        preexec_fn=take_pipes, close_fds=False, start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(read_there)
    os.close(write_there)
    try:
        yield Page(write, read)
    finally:
        os.close(write)
        os.close(read)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
