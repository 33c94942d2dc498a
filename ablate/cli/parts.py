"""`ablate parts`: the parts of a network by path, what each can be replaced by, and a section to begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

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
    console.print(_table(found))
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


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(title=f"{found['network']}: {found['params']:,} parameters", box=None, title_justify="left")
    for name in ("path", "kind", "parameters", "input", "output", "replace by"):
        table.add_column(name, justify="right" if name == "parameters" else "left", overflow="fold")
    for part in found["parts"]:
        count = f" ({part['count']} of them)" if part["count"] > 1 else ""
        shapes = ["" if part[key] is None else str(list(part[key])) for key in ("input", "output")]
        action = ", ".join(part["actions"])
        told = f"{action}  ({part['note']})" if action and part["note"] else action or part["note"]
        kind = part["type"] if part["kind"] == "module" else f"{part['kind']} {part['type']}"
        params = f"{part['params']:,}" if part["params"] else ""
        table.add_row(*(Text(each) for each in (f"{part['path']}{count}", kind, params, *shapes, told)))
    return table
