"""`ablate parts`: the parts of a network by path, what each can be replaced by, and a section to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from ablate.base.errors import RequestError, each_once
from ablate.cli import options
from ablate.cli.terminal import console, print_json

parts_app = typer.Typer()


@parts_app.command(epilog="Example: ablate parts mine:train --set width=64")
def parts(
    target: Annotated[
        str,
        typer.Argument(metavar="FUNCTION|FILE", help="Your training function, mypkg.module:function, or a study file."),
    ],
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting that the function reads.")
    ] = None,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """List the parts of a network by path, what each can be replaced by, and a `parts:` section to begin with.

    Of a study file, the network is that of its first data set; a searched setting has a value inside its range.
    """
    from ablate.driver.parts import list_parts
    from ablate.study.yaml_text import write_yaml

    given = _read(values or ())
    found = list_parts(target, given, data_dir=data_dir)
    if as_json:
        print_json(found)
        return
    console.say(*_lines(found))
    if not found["called"]:
        told = "The network was not called, so shapes are unknown; the first report of a trial checks its parts."
        console.say(told)
    if found["section"]:
        console.say(f"\n# a section to begin with\n{write_yaml({'parts': found['section']})}".rstrip("\n"))


def _read(values: Sequence[str]) -> dict[str, Any]:
    from ablate.study.yaml_text import read_scalar

    def setting(text: str) -> tuple[str, Any]:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise RequestError(f"--set {text!r}: write NAME=VALUE")
        return name, read_scalar(value)

    return each_once(map(setting, values))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield two lines for each part: its path, which a user copies, and what it is."""
    yield f"{found['network']}: {found['params']:,} parameters"
    for part in found["parts"]:
        yield part["path"] + (f" ({part['count']} of them)" if part["count"] > 1 else "")
        told = [part["type"] if part["kind"] == "module" else f"{part['kind']} {part['type']}"]
        told += [f"{part['params']:,} parameters"] if part["params"] else []
        shapes = [str(list(part[key])) for key in ("input", "output") if part[key] is not None]
        told += [" to ".join(shapes)] if shapes else []
        can = ", ".join(part["actions"])
        note = f" ({part['note']})" if can and part["note"] else part["note"]
        yield f"    {', '.join(told)}" + (f": {can}{note}" if can or note else "")
