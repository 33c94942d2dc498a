"""The arms of a comparison of parts: which networks a design trains, and what each is called."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Design = Literal["leave-one-out", "add-one-in", "full"]
COMPLETE = "complete"  # the arm that has every part
BARE = "bare"  # the arm that has no part that can be removed
TWIN = "twin-of-"  # begins the name of a twin, before that of the row without the part
PLACEBO = "placebo"  # the arm that is the baseline on other seeds
REMOVED = ""  # the level of a part that is removed
FULL_ARMS = 64  # a full design has at most this many arms
Arm = tuple[tuple[str, str], ...]  # (factor, level) of every factor that differs from the complete network


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One part of the file: its levels beside the complete network's, `(REMOVED,)` for a part that is removed."""

    name: str
    levels: tuple[str, ...]

    @property
    def removable(self) -> bool:
        """Whether the part is removed, and not given another form."""
        return self.levels == (REMOVED,)


def arms(factors: Sequence[Factor], designs: Iterable[Design]) -> tuple[Arm, ...]:
    """Return the arms of all `designs`, each network once and the complete one first.

    A design that these factors cannot have adds nothing; `faults` names it.
    """
    made = {"leave-one-out": _leave_one_out, "add-one-in": _add_one_in, "full": _full}
    found = [arm for design in designs if not faults(factors, (design,)) for arm in made[design](factors)]
    return tuple(dict.fromkeys([(), *found]))


def _leave_one_out(factors: Sequence[Factor]) -> Iterator[Arm]:
    yield from (((factor.name, level),) for factor in factors for level in factor.levels)


def _add_one_in(factors: Sequence[Factor]) -> Iterator[Arm]:
    """Yield the bare network, then that with one part; a part with levels keeps the form of the complete network."""
    names = [factor.name for factor in factors if factor.removable]
    yield without(names)
    yield from (without(other for other in names if other != name) for name in names)


def _full(factors: Sequence[Factor]) -> Iterator[Arm]:
    named = [[None, *((factor.name, level) for level in factor.levels)] for factor in factors]
    for chosen in itertools.product(*named):
        yield tuple(each for each in chosen if each is not None)


def without(names: Iterable[str]) -> Arm:
    """Return the arm without these parts."""
    return tuple((name, REMOVED) for name in names)


def arm_name(factors: Sequence[Factor], arm: Arm) -> str:
    """Return the name of an arm, which depends on its network alone and not on the designs that have it.

    It is `complete`, `without-a`, `without-a-b`, `only-a` if one part is left of three or more, or `bare` if none of
    two or more is left. Other forms follow by factor and level: `similarity-shared`, `without-a-similarity-shared`.
    """
    gone = [name for name, level in arm if level == REMOVED]
    kept = [factor.name for factor in factors if factor.removable and factor.name not in gone]
    removed = f"without-{'-'.join(gone)}" if gone else ""
    if len(gone) > 1 and not kept:
        removed = BARE
    elif len(gone) > 1 and len(kept) == 1:
        removed = f"only-{kept[0]}"
    forms = [f"{name}-{level}" for name, level in arm if level != REMOVED]
    return "-".join(filter(None, [removed, *forms])) or COMPLETE


def faults(factors: Sequence[Factor], designs: Iterable[Design]) -> dict[Design, str]:
    """Return for each design that these factors cannot have the rule that it breaks."""
    return {design: rule for design in designs if (rule := _rule(factors, design))}


def _rule(factors: Sequence[Factor], design: Design) -> str:
    size = math.prod(1 + len(factor.levels) for factor in factors)
    if design == "add-one-in" and not any(factor.removable for factor in factors):
        return "adding parts one by one needs a part that can be removed: all have `levels`"
    if design == "full" and size > FULL_ARMS:
        return (
            f"a full design has at most {FULL_ARMS} networks, not {len(factors)} parts in {size:,}: take leave-one-out"
        )
    return ""


def merge_settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of `two` added; `two` wins where both set the same."""
    merged = dict(one)
    for name, value in two.items():
        inside = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge_settings(merged[name], value) if inside else value
    return merged
