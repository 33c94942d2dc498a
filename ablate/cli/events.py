"""A command that runs a study, as lines of JSON: one for each event, and the last one says how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from ablate.base.errors import RESUMABLE, AblateError, RequestError
from ablate.cli.terminal import print_json


def print_event(event: Mapping[str, Any]) -> None:
    """Print an event on one line."""
    print_json(dict(event), indent=None)


def print_events(command: Callable[..., Path]) -> Callable[..., None]:
    """Return a command that returns its report's path as one that prints with `as_json`, as its last line, its end."""

    @wraps(command)
    def run(*, as_json: bool, **values: Any) -> None:
        code, report, error = 1, None, None
        try:
            report = str(command(as_json=as_json, **values))
            code = 0
        except AblateError as failure:
            code, error = failure.exit_code, str(failure)
            raise
        except SystemExit as end:  # an interruption
            code = end.code if isinstance(end.code, int) else 1
            raise
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            if as_json:
                told = {"event": "ended", "how": _how(code), "exit_code": code, "report": report, "error": error}
                print_event(told)

    return run


def _how(code: int) -> str:
    named = {0: "finished", RequestError.exit_code: "refused", RESUMABLE: "interrupted"}
    return named.get(code, "interrupted" if code == 128 + signal.SIGINT else "failed")
