"""The command line as a whole process: it seldom collects garbage, and does not take its modules apart at its end."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from ablate.base.files import ensure_home
from ablate.base.garbage import collect_rarely


def process() -> None:
    """Run the command line, then end this process with its exit code: the entry point of `ablate`.

    A command imports libraries of a million objects, which live until it ends. Python would look at all of them again
    and again while it imports, and free them one by one at the end, which takes a second after an import of torch.
    """
    ending = _Ending()
    atexit.register(ending.leave)
    if os.environ.get("COLUMNS") == "0":  # a terminal of unknown width, where rich would show nothing
        del os.environ["COLUMNS"]
    collect_rarely()
    ensure_home()
    try:
        from ablate.cli.app import main

        main()
    except SystemExit as end:
        ending.code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:  # before the command line handles it: modules are being imported
        ending.code = 128 + signal.SIGINT
        raise SystemExit(ending.code) from None


@dataclass
class _Ending:
    """The end of this process; `code` is its exit code, 1 unless the command line gave another one."""

    code: int = 1

    def leave(self) -> None:
        """End the process at once. It was registered first, so that it runs after all that libraries registered."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
        os._exit(self.code)
