"""The Dockerfile: pinned, not root, by the constraints that were tested; and, in its long form, its steps run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ablate.kubernetes.template import manifest
from support.deployed import built, containers
from support.image_recipe import DOCKERFILE, REPOSITORY, Stage, build_script, debian_root, ignore_rules, ignored, parse
from support.manifests import container, head, hook, request
from support.pod_security import SECRET_WORDS

TEXT = DOCKERFILE.read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PINNED = re.compile(r"[a-z]+:\d+\.\d+\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?")


def image_faults(text: str) -> list[str]:
    """Return what is wrong with a Dockerfile of ours."""
    stages = parse(text)
    names = {stage.name for stage in stages if stage.name}
    found = [f"base {stage.base} is not pinned" for stage in stages if stage.base not in names | pinned(stages)]
    if len(pinned(stages)) != 1:
        found.append("the stages stand on several bases")
    users = [step.text for step in stages[-1].of("USER")]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        found.append("the image does not end as a user of its own, by number")
    if not stages[-1].of("CMD") or not stages[-1].of("ENTRYPOINT"):
        found.append("the image says not what it runs")
    for stage in stages:
        for step in stage.steps:
            found += step_faults(step.name, step.text, step.flags, step.source, names)
    return found


def step_faults(name: str, text: str, flags: tuple[str, ...], source: str | None, stages: set[str]) -> list[str]:
    """Return what is wrong with one step."""
    found = []
    if name in ("ARG", "ADD", "VOLUME", "ONBUILD"):
        found.append(f"{name} is not for us")
    if name == "ENV" and any(word in text.lower() for word in SECRET_WORDS):
        found.append("a secret in the environment")
    if name == "RUN":
        constrained = "--constraint constraints.txt" in text or ("--no-deps" in text and "--no-" in text)
        if re.search(r"pip3? (install|wheel)", text) and not constrained:
            found.append(f"not under the constraints: {text}")
        if "apt-get install" in text and not (
            "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists" in text
        ):
            found.append("apt leaves more than is needed")
        if re.search(r"curl|wget http|git clone|\| *(ba)?sh", text):
            found.append(f"code from elsewhere: {text}")
    if name == "COPY" and source is None:
        paths = shlex.split(text)[:-1]
        found += [f"COPY {path}: not there" for path in paths if not (REPOSITORY / path).exists()]
        found += [f"COPY {path}: .dockerignore leaves it out" for path in paths if ignored(path, ignore_rules())]
        found += ["COPY of everything" for path in paths if path in (".", "./", "*")]
    if name == "COPY" and source is not None and source not in stages:
        found.append(f"COPY --from={source}: no such stage")
    return found


def pinned(stages: list[Stage]) -> set[str]:
    """Return the bases that are pinned to a version."""
    return {stage.base for stage in stages if PINNED.fullmatch(stage.base)}


def test_the_image_is_good() -> None:
    assert image_faults(TEXT) == []


def test_python_is_the_one_that_the_constraints_were_tested_on() -> None:
    tested = re.search(r"on Python (\d+\.\d+)", (REPOSITORY / "constraints.txt").read_text())
    (base,) = pinned(parse(TEXT))
    assert tested is not None
    assert base.startswith(f"python:{tested[1]}.")


def test_the_user_is_the_one_that_pods_run_as() -> None:
    final, group = parse(TEXT)[-1], head(manifest(request()))
    user = group["template"]["spec"]["securityContext"]["runAsUser"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container(group)["volumeMounts"]}
    assert final.of("USER")[-1].text == f"{user}:{user}"
    assert any(f"--uid {user} " in step.text for step in final.of("RUN"))
    assert final.environment()["HOME"] == mounted["tmp"]
    assert final.environment()["ABLATE_RUNS"] == mounted["runs"]


def test_programs_that_pods_call_are_in_it() -> None:
    (install,) = [step.text for step in parse(TEXT)[-1].of("RUN") if "apt-get install" in step.text]
    assert "pkill" in hook()
    assert "procps" in install
    commands = [container.get("command", [""])[0] for container in containers(built("overlays/local"))]
    assert "tini" in commands
    assert "tini" in install
    assert parse(TEXT)[-1].of("ENTRYPOINT")[0].words == ["tini", "-g", "--"]


def test_what_is_installed_is_what_the_project_names(tmp_path: Path) -> None:
    (step,) = [step.text for step in parse(TEXT)[0].of("RUN") if "tomllib" in step.text]
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    command = step.replace("/opt/ablate/bin/python", sys.executable)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["s3"], *extras["server"]]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == wanted


def test_every_requirement_is_pinned() -> None:
    pins = {line.split("==")[0].lower() for line in (REPOSITORY / "constraints.txt").read_text().splitlines()}
    named = {re.split(r"[\[<>=; ]", each)[0].lower() for each in PROJECT["dependencies"]}
    named |= {"boto3", "flask-wtf", "wtforms"}
    assert {name.replace("_", "-") for name in named} <= {pin.replace("_", "-") for pin in pins}


@pytest.mark.parametrize("path", [".git/config", ".env", "runs/a/ledger.sqlite", "tests/support/s3.py",
                                  ".venv/bin/python", "deploy/secret.sh", "ablate/__pycache__/x.pyc",
                                  "storage-url"])  # fmt: skip
def test_nothing_else_reaches_the_build(path: str) -> None:
    assert ignored(path, ignore_rules())


@pytest.mark.parametrize(
    "path", ["ablate/cli/app.py", "ablate/results/report/page.css", "pyproject.toml", "constraints.txt"]
)
def test_what_is_needed_reaches_the_build(path: str) -> None:
    assert not ignored(path, ignore_rules())


FAULTS = {
    "base-without-a-patch": (("python:3.11.14-slim-bookworm", "python:3.11-slim-bookworm"), "is not pinned"),
    "base-latest": (("python:3.11.14-slim-bookworm", "python:latest"), "is not pinned"),
    "two-bases": (("FROM python:3.11.14-slim-bookworm\n", "FROM python:3.12.1-slim-bookworm\n"), "several bases"),
    "root": (("USER 1000:1000", "USER root"), "as a user of its own"),
    "root-by-number": (("USER 1000:1000", "USER 0"), "as a user of its own"),
    "root-at-the-end": (("WORKDIR /tmp", "USER root"), "as a user of its own"),
    "user-by-name": (("USER 1000:1000", "USER ablate"), "by number"),
    "no-user": (("USER 1000:1000\n", ""), "as a user of its own"),
    "not-constrained": (("install --constraint constraints.txt --req", "install --req"), "not under the constraints"),
    "pip-unpinned": (("install --constraint constraints.txt --upgrade", "install --upgrade"), "not under the constr"),
    "password-as-argument": (("WORKDIR /build", "ARG TOKEN"), "ARG is not for us"),
    "password-in-the-environment": (("GIT_PYTHON_REFRESH=quiet", "PG_PASSWORD=x"), "a secret in the environment"),
    "copy-of-everything": (("COPY ablate ablate", "COPY . ."), "COPY of everything"),
    "copy-of-nothing": (("COPY ablate ablate", "COPY ablat ablate"), "not there"),
    "copy-of-what-is-ignored": (("COPY ablate ablate", "COPY tests tests"), ".dockerignore leaves it out"),
    "copy-from-no-stage": (("--from=package", "--from=packages"), "no such stage"),
    "recommended-packages": (("--no-install-recommends ", ""), "more than is needed"),
    "package-lists-left": (("&& rm -rf /var/lib/apt/lists/* ", ""), "more than is needed"),
    "script-from-elsewhere": (("RUN python -m venv /opt/ablate", "RUN curl https://x | sh"), "code from elsewhere"),
    "nothing-to-run": (('CMD ["ablate", "--help"]', ""), "says not what it runs"),
}


@pytest.mark.parametrize(("change", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_an_image_with_one_fault_is_refused(change: tuple[str, str], said: str) -> None:
    assert change[0] in TEXT
    assert any(said in line for line in image_faults(TEXT.replace(*change))), image_faults(TEXT.replace(*change))


def test_a_line_that_is_no_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="no instruction: install procps"):
        parse("FROM a\ninstall procps\n")
    with pytest.raises(ValueError, match="RUN before FROM"):
        parse("RUN x\nFROM a\n")


STUDY = """\
study: image
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8]}}
training: {epochs: 1, batch_size: 32, learning_rate: 0.01}
budget: {trials: 2}
confirm: null
"""
AS_A_POD = """\
echo '== as a pod'
mkdir -p $root/study && cp study.yaml $root/study/
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=0755,uid=1000 tmpfs $root/runs
mount -o remount,ro $root
user="setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all"
inside() { chroot $root $user env -i $image sh -c "cd /tmp && $1"; }
inside 'if touch /opt/x 2>/dev/null; then echo WRITABLE; exit 1; fi'
inside 'for name in bash tini pgrep pkill wget ray mlflow; do command -v $name || exit 1; done'
inside 'ablate --version'
inside 'ablate doctor /study/study.yaml --runs-dir /runs'
inside 'ray --version; mlflow --version'
inside 'python -c "import flask_wtf, boto3, torch, torchvision; print(torch.__version__, torch.version.cuda)"'
inside 'tini -g -- ablate search /study/study.yaml --executor local --device cpu --tracker none --runs-dir /runs'
inside 'test -f /runs/image/report/index.html && echo REPORT'
echo '== whole'
"""


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_the_steps_run_in_a_clean_root_and_a_study_in_the_image(tmp_path: Path) -> None:
    """Every RUN and COPY as written; only the base is another: Debian bookworm with its own Python 3.11."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv", "apt-get", "dpkg"))):
        pytest.skip("needs root and Debian's tools")
    if not re.search(r"^VERSION_CODENAME=bookworm$", Path("/etc/os-release").read_text(), re.M):
        pytest.skip("this machine's packages are not Debian bookworm's")
    base = debian_root(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "script").write_text(build_script(parse(TEXT), tmp_path, base, AS_A_POD))
    known = {key: value for key, value in os.environ.items() if re.search(r"^PIP_(?!FIND)|_proxy$", key, re.I)}
    environment = os.environ | {"NETWORK": " ".join(f"{key}={value}" for key, value in known.items())}
    with (tmp_path / "log").open("wb") as log:
        code = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", str(tmp_path / "script")],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
        ).returncode  # fmt: skip
    said = (tmp_path / "log").read_text(errors="replace")
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert code == 0, said[-4000:]
    assert "== whole" in said
    assert "REPORT" in said
    assert f"ablate {tomllib.loads((REPOSITORY / 'pyproject.toml').read_text())['project']['version']}" in said
