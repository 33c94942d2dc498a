"""One running command, seen from the process that supervises it: nothing that it started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic, perf_counter

from ablate.base.ending import LEFT_SECONDS, TERM_SECONDS
from ablate.base.errors import TrialError, TrialFault, lacks_memory
from ablate.functions.code.folder import CodeFolder
from ablate.functions.command_output import shown
from ablate.functions.processes import descendants, end_descendants, end_with_parent, kill, signal_name
from ablate.functions.terminal import LineReader

LOOK_SECONDS = 0.25  # after which a command that prints nothing has paused
BLOCK, PIPE_BYTES = 2**16, 2**20  # of one read; that a pipe holds at most
TAIL = 20  # last lines of the output that an error shows


class Running:
    """A command that runs. This process has started nothing else, so that all of its descendants belong to the command.

    `look` reads what the command prints, and gives the lines to `say` and then each line to `read`. Raises TrialError
    if the command cannot be started. With a `folder` it starts there, and imports what is there first.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str],
        read: Callable[[str], None],
        say: Callable[[Sequence[str]], None],
        folder: CodeFolder | None = None,
    ) -> None:
        self._begun, self._ended_at = perf_counter(), 0.0
        self._read_line, self._say = read, say
        self._lines, self._tail = LineReader(), deque[str](maxlen=TAIL)
        self._late = 0  # bytes read after the command has ended: what exceeds a full pipe is of another process
        self.over = False  # whether it has ended, and all that it has printed is read
        self._kills = _kernel_kills()
        try:
            self._process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid(), adopts=False),
                cwd=None if folder is None else folder.start,
                env={**(folder.environment(environment) if folder else environment), "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            raise TrialError(f"the command cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._open = True  # whether somebody can still print
        self._ended = os.pidfd_open(self._process.pid)

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal, or None while the command runs."""
        return self._process.returncode if self.over else None

    @property
    def last_lines(self) -> str:
        """The last lines of the output, as one."""
        return " | ".join(self._tail) or "none"

    def seconds(self) -> float:
        """Return how long the command has run."""
        return (self._ended_at or perf_counter()) - self._begun

    def look(self, *others: int, seconds: float = LOOK_SECONDS) -> None:
        """Read what the command prints within some time; return earlier if something can be read from `others`.

        Another process that holds the pipe is not waited for. Raises what `read` raises.
        """
        ended = self._process.poll() is not None  # what it has printed is in the pipe then
        watched = [*others, self._ended, *([self._output.fileno()] if self._open else [])]
        ready = wait(watched, 0 if ended else seconds)
        prints = self._open and self._output.fileno() in ready
        lines: Sequence[str] = ()
        if prints:
            content = os.read(self._output.fileno(), BLOCK)
            self._open = bool(content)  # it can close its output, and run on
            self._late += len(content) if ended else 0
            lines = self._lines.feed(content) if content else self._lines.pause()
        elif not ready:
            lines = self._lines.pause()
        if ended and (not prints or self._late >= PIPE_BYTES):
            lines = [*lines, *self._lines.end()]
            self.over, self._ended_at = True, perf_counter()
        self._take(lines)

    def ending(self) -> str:
        """Return in words how the command ended."""
        code = self._process.wait()
        if code >= 0:
            named = f" ({signal_name(code - 128)}, as a shell says it)" if 128 < code < 128 + signal.NSIG else ""
            return f"ended with exit code {code}{named}"
        memory = code == -signal.SIGKILL and _kernel_kills() > self._kills
        return f"was ended by {signal_name(-code)}" + (
            ": the kernel ended processes for lack of memory" if memory else ""
        )

    def failure(self, text: str) -> TrialError:
        """Return the error of a command that ended too early or with an error: how it ended, `text`, its last lines."""
        code = self._process.wait()
        killed = code < 0 and code != -signal.SIGINT  # as Python ends after a KeyboardInterrupt that the code raised
        kind: TrialFault = "memory" if lacks_memory(self.last_lines) else "died" if killed else "trial"
        return TrialError(f"the command {self.ending()}{text}. Its last lines: {self.last_lines}", kind)

    def end(self) -> None:
        """End the command, and all processes that it started and left behind; what it prints meanwhile is read."""
        self._kill_group(signal.SIGTERM)
        deadline = monotonic() + TERM_SECONDS
        while not self.over and monotonic() < deadline:
            try:
                self.look(seconds=0.05)
            except Exception:  # of `read`: the trial has an outcome already
                self._read_line = lambda line: None
        if self._process.poll() is None:
            self._kill_group(signal.SIGKILL)
            self._process.wait()
        if left := end_descendants_in_turn():
            self._say([f"ablate: ended what the command had left running: {', '.join(left)}"])
        self._output.close()
        os.close(self._ended)

    def _kill_group(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _take(self, lines: Sequence[str]) -> None:
        if lines:
            self._tail.extend(shown(line) for line in lines[-TAIL:] if line.strip())
            self._say(lines)
        for line in lines:
            self._read_line(line)


def end_descendants_in_turn() -> list[str]:
    """End every process that this one has started, by SIGTERM first; return them in words."""
    _reap()
    found = {pid: f"{_words(pid)} (process {pid})" for pid in descendants(os.getpid())}
    kill(found, signal.SIGTERM)
    deadline, left = monotonic() + LEFT_SECONDS, set(found)
    while left and monotonic() < deadline:
        time.sleep(0.02)
        _reap()
        left &= set(descendants(os.getpid()))
    end_descendants(os.getpid())
    _reap()
    return list(found.values())


def _reap() -> None:
    """Forget the orphans that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _words(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return shown(words.decode("utf-8", "replace"))
    return ""


def _kernel_kills() -> int:
    """Return how often the kernel has ended a process for lack of memory; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
