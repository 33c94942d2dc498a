"""One running command of a trial: it is followed by a thread, and nothing that it started outlives it."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter

from ablate.base.errors import PausedError, TrialError, TrialFault, lacks_memory
from ablate.functions.code_folder import CodeFolder
from ablate.functions.processes import PDEATHSIG, kill
from ablate.functions.terminal import LineReader

TOKEN = "ABLATE_PROCESS"  # the variable by which every process of a command is found, whatever its group and session
ASK_SECONDS = 0.25  # between two looks at whether the trial is to pause, and whether the command has ended
END_SECONDS = 5.0  # between SIGTERM and SIGKILL
LEFT_SECONDS = 1.0  # the same, of what a command left behind
BLOCK, PIPE_BYTES = 2**16, 2**20  # of one read; that a pipe holds at most
TAIL = 20  # last lines of the output that an error shows
SHOWN = 200  # characters of each
_PROC = Path("/proc")
_LIBC = ctypes.CDLL(None)  # loaded here: `_end_with_parent` runs after a fork, where loading a library can hang


class Running:
    """A command that runs; a thread gives each line of its output to `read`.

    `token` is unique to the trial and seed. `say` gets the lines for the trial's log. Raises TrialError if the command
    cannot be started. With a `folder` it starts there, and imports what is there first.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str],
        token: str,
        read: Callable[[str], None],
        say: Callable[[Sequence[str]], None],
        pause: Callable[[], bool],
        folder: CodeFolder | None = None,
    ) -> None:
        self._begun, self._ended_at = perf_counter(), 0.0
        self._token, self._read_line, self._say, self._pause = token, read, say, pause
        self._lines, self._tail = LineReader(), deque[str](maxlen=TAIL)
        self._changed = threading.Condition()
        self._over = False
        self._error: BaseException | None = None
        self._kills = _kernel_kills()
        own = {"PYTHONUNBUFFERED": "1", TOKEN: token}
        try:
            self._process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                cwd=None if folder is None else folder.start,
                env={**(folder.environment(environment) if folder else environment), **own},
            )
        except OSError as error:
            raise TrialError(f"the command cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._output, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._follow, name="command", daemon=True)
        self._thread.start()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal, or None while the command runs."""
        return self._process.returncode if self._over else None

    @property
    def last_lines(self) -> str:
        """The last lines of the output, as one."""
        return " | ".join(self._tail) or "none"

    def seconds(self) -> float:
        """Return how long the command has run."""
        return (self._ended_at or perf_counter()) - self._begun

    def wait(self, ready: Callable[[], bool] = lambda: False, seconds: float | None = None) -> bool:
        """Wait until `ready()` is true, by default for the end; return False if the end or the limit comes first.

        Raises PausedError once `pause()` is true, and what `read` has raised.
        """
        deadline = None if seconds is None else monotonic() + seconds
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if ready():
                    return True
                left = ASK_SECONDS if deadline is None else min(ASK_SECONDS, deadline - monotonic())
                if self._over or left <= 0:
                    return False
                if self._pause():
                    raise PausedError("the command was ended to pause its trial")
                self._changed.wait(left)

    def ending(self) -> str:
        """Return in words how the command ended."""
        code = self._process.wait()
        if code >= 0:
            named = f" ({_signal(code - 128)}, as a shell says it)" if 128 < code < 128 + signal.NSIG else ""
            return f"ended with exit code {code}{named}"
        memory = code == -signal.SIGKILL and _kernel_kills() > self._kills
        return f"was ended by {_signal(-code)}" + (": the kernel ended processes for lack of memory" if memory else "")

    def failure(self, text: str) -> TrialError:
        """Return the error of a command that ended too early or with an error: how it ended, `text`, its last lines."""
        code = self._process.wait()
        killed = code < 0 and code != -signal.SIGINT  # as Python ends after a KeyboardInterrupt that the code raised
        kind: TrialFault = "memory" if lacks_memory(self.last_lines) else "died" if killed else "trial"
        return TrialError(f"the command {self.ending()}{text}. Its last lines: {self.last_lines}", kind)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the command's process group, so that several commands can end at once."""
        if self._process.poll() is None:
            self._kill_group(signal.SIGTERM)

    def end(self) -> None:
        """End the command, and all processes that it started and left behind."""
        self.ask_to_end()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        if self._process.poll() is None:
            self._kill_group(signal.SIGKILL)
            self._process.wait()
        left = end_leftovers(self._token)
        self._kill_group(signal.SIGKILL)  # where there is no /proc
        self._thread.join()
        self._ready.close()
        self._output.close()
        if left:
            self._say([f"ablate: ended what the command had left running: {', '.join(left)}"])

    def _kill_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _follow(self) -> None:
        error: BaseException | None = None
        try:
            for block in self._blocks():
                self._take(self._lines.feed(block) if block else self._lines.pause())
            self._take(self._lines.end())
        except Exception as found:  # raised by `wait`, in the trial's own thread
            error = found
        with self._changed:
            self._error, self._over = error, error is None
            self._ended_at = perf_counter()
            self._changed.notify_all()

    def _blocks(self) -> Iterator[bytes]:
        """Yield the output until the command ends, and nothing (b"") where it pauses.

        Another process that holds the pipe is not waited for.
        """
        late = 0  # bytes read after the command has ended: what exceeds a full pipe is of another process
        while late < PIPE_BYTES:
            ended = self._process.poll() is not None  # what it has printed is in the pipe then
            if not self._ready.select(0 if ended else ASK_SECONDS):
                if ended:
                    return
                yield b""
                continue
            content = os.read(self._output.fileno(), BLOCK)
            if not content:  # it has closed its output, and may run on
                yield b""
                self._process.wait()
                return
            late += len(content) if ended else 0
            yield content

    def _take(self, lines: Sequence[str]) -> None:
        if lines:
            self._tail.extend(line.strip()[:SHOWN] for line in lines[-TAIL:] if line.strip())
            self._say(lines)
        for line in lines:
            self._read_line(line)
        with self._changed:
            self._changed.notify_all()


def end_leftovers(token: str) -> list[str]:
    """End every process of this machine that a command with `token` left running; return them in words."""
    found = dict(_with_token(token))
    if not found:
        return []
    kill(found, signal.SIGTERM)
    deadline, left = monotonic() + LEFT_SECONDS, found
    while left and monotonic() < deadline:
        time.sleep(0.02)
        left = {pid: words for pid, words in left.items() if _token_of(pid) == token}
    kill(dict(_with_token(token)), signal.SIGKILL)
    return [f"{words} (process {pid})" for pid, words in found.items()]


def _with_token(token: str) -> Iterator[tuple[int, str]]:
    for folder in _PROC.glob("[0-9]*") if _PROC.is_dir() else ():
        pid = int(folder.name)
        if _token_of(pid) == token:
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                yield pid, words[:SHOWN]


def _token_of(pid: int) -> str | None:
    """Return the token of a process; None if it has none, is gone or belongs to another user."""
    begin = f"{TOKEN}=".encode()
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((os.fsdecode(each.removeprefix(begin)) for each in variables if each.startswith(begin)), None)


def _kernel_kills() -> int:
    """Return how often the kernel has ended a process for lack of memory; 0 where it does not say."""
    with suppress(OSError):
        for line in (_PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_with_parent() -> None:
    """Let the kernel kill the command when the process that reads it is killed."""
    with suppress(OSError, AttributeError):
        _LIBC.prctl(PDEATHSIG, signal.SIGKILL)
