"""A Dockerfile, read; and its steps run in a clean Debian root where there is no engine to run them."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.paths import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"


@dataclass(frozen=True)
class ReportSummary:
    """One instruction: its name, its text, and its flags such as `--from=build`."""

    name: str
    text: str
    flags: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The text as words, or as the JSON list that it is."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)

    @property
    def source(self) -> str | None:
        """The stage that a COPY takes from, None where it is the build's context."""
        return next((flag.removeprefix("--from=") for flag in self.flags if flag.startswith("--from=")), None)


@dataclass(frozen=True)
class Stage:
    """One stage: what it is built on, its name if it has one, its steps."""

    base: str
    name: str | None
    steps: tuple[ReportSummary, ...]

    def of(self, name: str) -> list[ReportSummary]:
        """Return the steps of that name."""
        return [step for step in self.steps if step.name == name]

    def environment(self) -> dict[str, str]:
        """Return what ENV sets, in order."""
        return dict(pair.split("=", 1) for step in self.of("ENV") for pair in shlex.split(step.text))


def parse(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile; raise ValueError for a line that is no instruction."""
    stages: list[tuple[str, str | None, list[ReportSummary]]] = []
    for step in _steps(text):
        if step.name == "FROM":
            words = step.text.split()
            stages.append((words[0], words[2] if len(words) == 3 else None, []))
        elif not stages:
            raise ValueError(f"{step.name} before FROM")
        else:
            stages[-1][2].append(step)
    return [Stage(base, name, tuple(steps)) for base, name, steps in stages]


def _steps(text: str) -> Iterator[ReportSummary]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.split(r"(?<!\\)\n", "\n".join(lines)):
        joined = re.sub(r"\\\n\s*", "", line).strip()
        if not joined:
            continue
        found = re.fullmatch(r"([A-Z]+)((?:\s+--\S+)*)\s+(.*)", joined)
        if found is None:
            raise ValueError(f"no instruction: {joined}")
        flags = tuple(found[2].split()) if found[1] in ("COPY", "ADD", "FROM", "RUN") else ()
        rest = found[3] if flags or not found[2] else f"{found[2].strip()} {found[3]}"
        yield ReportSummary(found[1], rest, flags)


def ignored(path: str, rules: Sequence[str]) -> bool:
    """Return whether .dockerignore's `rules` keep `path` out of the build; the last rule that matches decides."""
    out = False
    parents = ["/".join(path.split("/")[:count]) for count in range(1, path.count("/") + 2)]
    for rule in rules:
        pattern = rule.removeprefix("!").rstrip("/")
        patterns = [pattern, pattern.removeprefix("**/")] if pattern.startswith("**/") else [pattern]
        deep = [each.split("/")[-1] for each in parents] if pattern.startswith("**/") else []
        if any(fnmatch.fnmatch(each, one) for one in patterns for each in [*parents, *deep]):
            out = not rule.startswith("!")
    return out


def ignore_rules() -> list[str]:
    """Return the rules of .dockerignore."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


ROOT_PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"


def build_script(stages: Sequence[Stage], folder: Path, base: Path, after: str) -> str:
    """Return a script that runs the stages on `base` one after another, and `after` in the last one's root, `$root`.

    Each stage's root is an overlay on its base's, as an engine makes it; `COPY --from` is the other stage's folder
    itself, which nobody needs afterwards. The script must run in a mount namespace of its own. `$NETWORK` holds
    settings that a step needs here and an engine has of itself. The last stage's environment is `$image`.
    """
    lines = ["set -eu", f"cd {folder}", "mkdir layers"]
    ended: dict[str | None, tuple[str, dict[str, str], str]] = {}  # of a stage: its root, environment and folder
    for index, stage in enumerate(stages):
        lower, environment, place = ended.get(stage.base, (str(base), {"PATH": ROOT_PATH, "HOME": "/root"}, "/"))
        root, layer = f"{folder}/root-{index}", f"layers/{index}"
        lines += [f"echo '== FROM {stage.base}'", f"mkdir {root} {layer} {layer}-work"]
        lines.append(f"mount -t overlay -o lowerdir={lower},upperdir={layer},workdir={layer}-work overlay {root}")
        lines += [f"mount --rbind /{name} {root}/{name}" for name in ("dev", "proc")]
        lines.append(f"cp /etc/resolv.conf /etc/hosts {root}/etc/")
        for step in stage.steps:
            if step.name == "ENV":
                pairs = dict(pair.split("=", 1) for pair in shlex.split(step.text))
                new = {key: value.replace("$PATH", environment["PATH"]) for key, value in pairs.items()}
                environment = environment | new
            elif step.name == "WORKDIR":
                place = step.text
                lines.append(f"mkdir -p {root}{place}")
            elif step.name == "RUN":
                given = shlex.join(f"{key}={value}" for key, value in environment.items())
                command = shlex.quote(f"cd {place} && {step.text}")
                lines += [f"echo {shlex.quote(f'-- {step.text}'[:150])}"]
                lines.append(f"chroot {root} env -i {given} $NETWORK /bin/sh -c {command}")
            elif step.name == "COPY" and step.source:
                path, target = step.words
                lines.append(f"mkdir -p {root}{target} && mount --bind {ended[step.source][0]}{path} {root}{target}")
            elif step.name == "COPY":
                lines += _copied(step, f"{root}{place}")
        ended[stage.name] = (root, environment, place)
    root, environment, _ = ended[stages[-1].name]
    image = shlex.quote(shlex.join(f"{key}={value}" for key, value in environment.items()))
    return "\n".join([*lines, f"root={root}", f"image={image}", after]) + "\n"


def _copied(step: ReportSummary, place: str) -> Iterator[str]:
    *paths, target = step.words
    for path in paths:
        into = f"{place}/{target}{Path(path).name}" if target.endswith("/") else f"{place}/{target}"
        yield f"cp -r {REPOSITORY}/{path} {into}"


def debian_root(folder: Path) -> Path:
    """Make a small Debian bookworm with its Python 3.11, in place of the image that the Dockerfile starts from."""
    tools, root = folder / "tools", folder / "base"
    tools.mkdir(parents=True)
    download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "debootstrap"]
    subprocess.run(download, cwd=tools, check=True)
    (package,) = tools.glob("debootstrap_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(tools)], check=True)
    include = "--include=python3,python3-venv,python3-distutils,python3-lib2to3,ca-certificates"
    command = [str(tools / "usr/sbin/debootstrap"), "--variant=minbase", include, "bookworm", str(root)]
    environment = {"DEBOOTSTRAP_DIR": str(tools / "usr/share/debootstrap"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run([*command, "http://deb.debian.org/debian"], env=environment, check=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3.11")
    # this machine's network may have certificates of its own
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    return root
