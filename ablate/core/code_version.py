"""The name of a code version as a trainable: a tree of git, and the trainable whose code it holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ablate.core.config import Frozen

CODE_PREFIX = "code:"  # before the JSON of a code version, as the name of a trainable
SHORT = 12  # characters of a tree's name in the names of refs and folders
VERSIONS = "versions"  # folder of a study's home in which the worktrees of its code versions lie


Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]


class Code(Frozen):
    """A version of a repository's code, as a ledger holds it: equal programs have equal `program`.

    `revision` is a commit of `tree`, `patch` the SHA-256 of a diff. `requirements` are the changed files that name
    packages.
    """

    revision: Hash
    tree: Hash
    patch: Hash
    program: Hash
    dirty: bool
    requirements: tuple[str, ...] = ()


class CodeVersion(Frozen):
    """A tree of git in which the trainable `base` runs; `inside` is the folder of the tree in which it starts.

    After a command, `evaluate` runs in the tree `reference`: what it prints replaces what the command has printed.
    """

    base: str
    tree: str
    inside: str = ""
    evaluate: str | None = None
    reference: str | None = None

    @property
    def trees(self) -> tuple[str, ...]:
        """The trees whose files a trial needs."""
        return tuple(dict.fromkeys([self.tree, self.reference or self.tree]))

    @property
    def name(self) -> str:
        """The name of the trainable."""
        return CODE_PREFIX + self.model_dump_json(exclude_defaults=True)

    @staticmethod
    def of(name: str) -> CodeVersion | None:
        """Return the code version that a name stands for, None for any other trainable."""
        if not name.startswith(CODE_PREFIX + "{"):  # no module called code
            return None
        return CodeVersion.model_validate_json(name.removeprefix(CODE_PREFIX))


def base_trainable(name: str) -> str:
    """Return the trainable that runs in a code version; any other name as it is."""
    version = CodeVersion.of(name)
    return name if version is None else version.base
