"""Commands for clusters: hand a study to Ray, render it for Kubernetes, look at what it will find there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ablate import cli_options as options
from ablate.cli_options import RUNS
from ablate.errors import RequestError, StudyFailedError
from ablate.kubernetes import ClusterRequest, Command, entrypoint, holds_password, preflight, proposal, rendered
from ablate.kubernetes.arguments import TAKEN
from ablate.settings import Settings
from ablate.study_file import parse_study, study_text

cluster_app = typer.Typer()
kubernetes_app = typer.Typer(
    no_args_is_help=True, help="Render a study for KubeRay, and ask the cluster if it can run."
)
cluster_app.add_typer(kubernetes_app, name="k8s")
console = Console()
errors = Console(stderr=True)

Further = Annotated[
    list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Further options of `ablate search` or `compare`.")
]
Image = Annotated[str, typer.Option(help="Image with ablate in it, REGISTRY/ablate:VERSION (deploy/Dockerfile).")]
Name = Annotated[str | None, typer.Option(help="Name of the job, a DNS label. (default: the study's)")]
GpusPerNode = Annotated[int, typer.Option(min=1, help="GPUs of one worker node.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Worker nodes of a study without GPUs.")]
Cpus = Annotated[str, typer.Option(help="CPUs of one worker node.")]
Memory = Annotated[str, typer.Option(help="Memory of one worker node.")]
Namespace = Annotated[str, typer.Option(help="Namespace, as deploy/ makes it.")]
Secret = Annotated[str, typer.Option(help="Secret with storage-url and the bucket's keys.")]
DataClaim = Annotated[str, typer.Option(help="PersistentVolumeClaim of the data sets; '' for none.")]
RunsClaim = Annotated[
    str | None, typer.Option(help="Claim that all nodes write, for checkpoints and report where there is no bucket.")
]
Queue = Annotated[str | None, typer.Option(help="Kueue's LocalQueue to wait in.")]
Spot = Annotated[
    str | None, typer.Option(help="Label of spot nodes, KEY=VALUE: workers prefer them, the head keeps off.")
]
Retries = Annotated[int, typer.Option(min=0, help="Clusters to try after the first; each goes on with the study.")]
AllGpus = Annotated[int, typer.Option(min=0, help="GPUs to use in all.")]


@cluster_app.command(epilog="Example: ablate submit search_spaces/vision.yaml --address http://head:8265 --gpus 8")
def submit(
    file: options.StudyFile,
    further: Further = None,
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="Ray's dashboard.")
    ] = "http://127.0.0.1:8265",
    gpus: AllGpus = 0,
    scale: options.Scale = None,
    only: options.Only = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for its end.")] = False,
) -> None:
    """Run a study as a job of a running Ray cluster; it goes on there when this machine is switched off."""
    from ablate.execution.jobs import ENDED, Job, follow
    from ablate.execution.jobs import submit as start

    text, name, command = _study(file, scale, only)
    _refuse_passwords(further or ())
    words = ["ablate", command, "study.yaml", "--address", "auto", "--gpus", str(gpus), *(further or ())]
    job = start(address, Job(name=name, study_text=text, words=tuple(words)))
    console.print(f"Submitted {job}", highlight=False, soft_wrap=True)
    if detach:
        console.print(f"Its log: ray job logs {job} --address {address} --follow", highlight=False, soft_wrap=True)
        return
    ended = follow(address, job, lambda lines: print(lines, end="", flush=True))
    if ended != ENDED[0]:
        raise StudyFailedError(f"job {job} {ended.lower()}. The same command goes on where the study stands.")


@kubernetes_app.command(
    epilog="Example: ablate k8s render search_spaces/vision.yaml --gpus 8 --image registry/ablate:0.1.0"
)
def render(
    context: typer.Context,
    file: options.StudyFile,
    image: Image,
    further: Further = None,
    gpus: AllGpus = 0,
    gpus_per_node: GpusPerNode = 1,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    nodes: Nodes = None,
    cpus: Cpus = "8",
    memory: Memory = "32Gi",
    name: Name = None,
    namespace: Namespace = "ablate",
    secret: Secret = "ablate",
    data_claim: DataClaim = "ablate-data",
    runs_claim: RunsClaim = None,
    queue: Queue = None,
    spot: Spot = None,
    retries: Retries = 20,
    scale: options.Scale = None,
    only: options.Only = None,
    check: Annotated[bool, typer.Option("--check", help="Ask the cluster first (kubectl).")] = False,
) -> None:
    """Print the study as one manifest for `kubectl apply -f -`: its file, a RayJob that resumes, the head's budget."""
    text, study, command = _study(file, scale, only)
    request = ClusterRequest(
        name=name or proposal(study), study_text=text, image=image, gpus=gpus, gpus_per_node=gpus_per_node,
        gpus_per_trial=gpus_per_trial, nodes=nodes, cpus=cpus, memory=memory, command=command, namespace=namespace,
        secret=secret, data_claim=data_claim or None, runs_claim=runs_claim, queue=queue, spot=spot, retries=retries,
        arguments=tuple(further or ()),
    )  # fmt: skip
    _parse(context, entrypoint(request))
    if request.name != (name or study):
        told = f"ablate: {study!r} is no DNS label, so the job is named {request.name}; --name gives it another name."
        errors.print(told, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if check:
        for note in preflight(request):
            errors.print(f"ablate: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    print(rendered(request), end="")


@cluster_app.command(
    epilog="Example: ablate doctor search_spaces/vision.yaml --storage postgresql+psycopg://ada@db/ablate"
)
def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A study whose data are to be looked for.")
    ] = None,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
    store: options.Store = None,
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Look at what a study needs, here and now: software, ledger, store, tracking server, data, devices."""
    from ablate.doctor import examine

    settings = Settings(
        runs_dir=runs_dir, data_dir=data_dir, storage=storage, store=store, tracking_uri=tracking_uri
    )  # fmt: skip
    faulty = []
    for finding in examine(settings, file):
        mark = "ok   " if finding.good else "FAULT"
        console.print(f"{mark} {finding.what}: {finding.seen}", markup=False, highlight=False, soft_wrap=True)
        faulty += [] if finding.good else [finding.what]
    if faulty:
        errors.print(f"ablate: {', '.join(faulty)} will not do; nothing was started.", style="red", markup=False)
        sys.exit(RequestError.exit_code)


def _study(file: Path, scale: float | None, only: list[str] | None) -> tuple[str, str, Command]:
    """Return the text of a study, its name, and the command that runs it; raise RequestError where it is faulty."""
    text = study_text(file, scale=scale, only=only)
    study = parse_study(text, str(file))
    return text, study.name, "compare" if study.compare is not None else "search"


def _parse(context: typer.Context, command: str) -> None:
    """Refuse, as the command itself would, an option that does not exist or a value that it does not take."""
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


def _refuse_passwords(words: Sequence[str]) -> None:
    if any(map(holds_password, words)):
        raise RequestError(
            "an option holds a password, which would stand in the job's description for all to read. Set"
            " ABLATE_STORAGE where the cluster's processes start (on Kubernetes: in the Secret)."
        )
