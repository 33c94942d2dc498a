"""The commands below `ablate data`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ablate.cli.options import AsJson, DataDir
from ablate.cli.terminal import console, print_json

data_app = typer.Typer(
    name="data", no_args_is_help=True, help="List the data sets of this machine, and download others."
)


@data_app.command("list", epilog="Example: ablate data list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the built-in data sets, whether they are here, their size and their folder."""
    from ablate.engine.tasks import available

    found = available(data_dir)
    if as_json:
        print_json([{"name": e.name, "here": e.present, "bytes": e.size_bytes, "place": str(e.path)} for e in found])
        return
    table = Table("data set", "here", "size", "place", box=None, pad_edge=False)
    for entry in found:
        size = f"{entry.size_bytes / 1e6:,.1f} MB" if entry.present else ""
        table.add_row(entry.name, "yes" if entry.present else "no", size, str(entry.path))
    console.print(table)


@data_app.command("fetch", epilog="Example: ablate data fetch mnist")
def data_fetch(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set into the data folder."""
    from ablate.engine.tasks import fetch

    console.say(f"{name}: {fetch(name, data_dir)}")
