"""Commands for clusters: render a study for Kubernetes, check what it needs."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.base.errors import RequestError
from ablate.cli import options
from ablate.cli.options import duration
from ablate.cli.terminal import console, errors, print_json
from ablate.kubernetes.request import ClusterOptions
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from ablate.driver.doctor import Examination

cluster_app = typer.Typer()
kubernetes_app = typer.Typer(
    no_args_is_help=True, help="Print a study as a manifest for KubeRay, and check first what the cluster has."
)
cluster_app.add_typer(kubernetes_app, name="k8s")

Further = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OPTIONS]", help="Options that are passed on to `ablate search` or `compare`."),
]
MOST = 10_000  # of nodes, and of what one has
OPTIONS: dict[str, Any] = {  # by the name of a field of ClusterOptions, in the order of the help text
    "image": Annotated[
        str, typer.Option(help="Container image that holds ablate: REGISTRY/ablate:VERSION (from deploy/Dockerfile).")
    ],
    "gpus": Annotated[int, typer.Option(min=0, max=MOST, help="Number of GPUs to use in all.")],
    "gpus_per_node": Annotated[int, typer.Option(min=1, max=64, help="Number of GPUs per worker node.")],
    "gpus_per_trial": options.GpusPerTrial,
    "nodes": Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Number of worker nodes of a study without GPUs. (default: 1)"),
    ],
    "cpus": Annotated[int, typer.Option(min=1, max=MOST, help="Number of CPUs per worker node.")],
    "memory": Annotated[str, typer.Option(help="Memory per worker node, at least 4Gi.")],
    "name": Annotated[
        str | None, typer.Option(help="Name of the job, a DNS label. (default: made from the study's name)")
    ],
    "namespace": Annotated[str, typer.Option(help="Namespace of the job; deploy/ creates `ablate`.")],
}


@kubernetes_app.command(
    epilog="Example: ablate k8s render search_spaces/vision.yaml --gpus 8 --image registry/ablate:0.1.0"
)
@options.gather(*OPTIONS, known=OPTIONS)
def render(
    context: typer.Context,
    file: options.StudyFile,
    further: Further = None,
    *,
    asked: ClusterOptions,
    name: str | None = None,
    scale: options.Scale = None,
    only: options.Only = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Ask the cluster first, by kubectl: dry run, Secret, job of this name. Print nothing after a fault.",
        ),
    ] = False,
) -> None:
    """Print a study as one manifest for `kubectl apply -f -`: study file, RayJob that resumes, disruption budget.

    Queues, spot nodes and the like are components for `kubectl apply -k`: deploy/README.md.
    """
    from ablate.functions.code.changes import refuse_local_code
    from ablate.kubernetes.kubectl import kubectl_context
    from ablate.kubernetes.preflight import preflight
    from ablate.kubernetes.request import ClusterRequest, proposal
    from ablate.kubernetes.template import manifest, rendered
    from ablate.study import read_study

    study, text = read_study(file, scale=scale, only=only)
    refuse_local_code(study)
    request = ClusterRequest(
        **vars(asked), name=proposal(study.name) if name is None else name, study_text=text,
        command="search" if study.compare is None else "compare", arguments=further or (),
    )  # fmt: skip
    _parse(context, manifest(request)[-1]["spec"]["entrypoint"])
    if name is None and request.name != study.name:
        told = (
            f"ablate: {study.name!r} is no DNS label, so the job is named {request.name}; --name gives it another name."
        )
        errors.say(told, style="yellow")
    if check:
        context_name = kubectl_context() or "of the pod that it runs in"
        asking = f"ablate: asking the cluster of kubectl's context {context_name}, namespace {request.namespace}"
        errors.say(asking)
        for note in preflight(request):
            errors.say(f"ablate: {note}", style="yellow")
    print(rendered(request), end="")


@cluster_app.command(
    epilog="Example: ablate doctor search_spaces/vision.yaml --storage postgresql+psycopg://ada@db/ablate"
)
@options.gather(*options.PLACES, "tracker", "tracking_uri")
def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Study file whose data sets are looked for.")
    ] = None,
    *,
    asked: Locations,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=duration, help="Repeat the checks until all pass, for at most this time (90s, 10m)."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check what a study needs on this machine: software, ledger, store, tracking server, data sets, devices."""
    from ablate.driver.doctor import examine, look_until

    if wait is None:
        found = list(examine(asked, file)) if as_json else [_show(finding) for finding in examine(asked, file)]
    else:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # none for process 1 of a container
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        said: set[Examination] = set()  # what is sound is shown once, what is not each time

        def look() -> list[Examination]:
            now = list(examine(asked, file))
            for each in now:
                if each not in said and not as_json:
                    _show(each, clock=True)
            said.update(each for each in now if each.good)
            return now

        pause = _show_pause if not as_json else lambda *_: None
        found = look_until(look, is_sound, pause, seconds=wait)
    if as_json:
        print_json([asdict(each) for each in found])
    if faulty := _faulty(found):
        errors.print(f"ablate: {faulty} failed the check; nothing was started.", style="red")
        sys.exit(RequestError.exit_code)


def _show(finding: Examination, *, clock: bool = False) -> Examination:
    """Print a finding in one line, with the time of day (UTC) where `clock` is set, and return it."""
    mark = "ok   " if finding.good else "FAULT" if finding.needed else "WARN "
    line = f"{_now() if clock else ''}{mark} {finding.what}: {finding.seen}"
    console.say(line)
    return finding


def _show_pause(found: Sequence[Examination], seconds: float) -> None:
    line = f"{_now()}{_faulty(found)} failed the check. Checking again in {seconds:.0f} s."
    console.say(line)


def is_sound(found: Sequence[Examination]) -> bool:
    """Return whether nothing that a study needs is at fault."""
    return not _faulty(found)


def _faulty(found: Sequence[Examination]) -> str:
    return ", ".join(finding.what for finding in found if finding.is_fault)


def _now() -> str:
    return f"{datetime.now(UTC):%H:%M:%SZ} "


def _parse(context: typer.Context, command: str) -> None:
    """Refuse, as the command itself would, an option that does not exist or a value that it does not take."""
    from ablate.kubernetes.request import TAKEN

    _, name, *words = shlex.split(command)
    root = context.find_root()
    commands: Any = root.command
    try:
        commands.commands[name].make_context(name, words, parent=root)
    except Exception as error:
        near: list[str] | None = getattr(error, "possibilities", None)
        if near:  # an unknown option: name none that would be refused as well
            error.possibilities = [option for option in near if option not in TAKEN]  # type: ignore[attr-defined]
        raise
