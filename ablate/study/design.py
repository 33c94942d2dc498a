"""The arms of a comparison of parts: which networks a design trains, what each is called, and which effects alias."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

Design = Literal["leave-one-out", "add-one-in", "full", "fractional"]
COMPLETE = "complete"  # the arm that has every part
BARE = "bare"  # the arm that has no part that can be removed
TWIN = "twin-of-"  # begins the name of a twin, before that of the row without the part
PLACEBO = "placebo"  # the arm that is the baseline on other seeds
REMOVED = ""  # the level of a part that is removed
FULL_FACTORS, FULL_ARMS = 4, 64  # a full design has at most this many factors and arms
FRACTION_FACTORS = (5, 20)  # fewest and most factors of a fractional design
RESOLUTION = 4  # least resolution of a fractional design: no main effect aliases with an interaction of two
Arm = tuple[tuple[str, str], ...]  # (factor, level) of every factor that differs from the complete network
Term = tuple[str, ...]  # the factors of a main effect or an interaction, in the file's order


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

    A fractional design of too few factors, or of a factor with several levels, adds nothing; `faults` names it.
    """
    made = {"leave-one-out": _leave_one_out, "add-one-in": _add_one_in, "full": _full, "fractional": _fraction}
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


def _fraction(factors: Sequence[Factor]) -> Iterator[Arm]:
    for signs in _fraction_signs(len(factors)):
        yield tuple((f.name, f.levels[0]) for f, sign in zip(factors, signs, strict=True) if sign < 0)


@cache
def _fraction_signs(factors: int) -> tuple[tuple[int, ...], ...]:
    """Return the smallest two-level fraction of resolution IV, [arms][factors], +1 as in the complete network.

    One of resolution V is taken if it is no larger. It is the principal fraction: its first row is the complete
    network.
    """
    import pydoe  # the import takes a second, and no other design needs it

    fraction, better = (pydoe.fracfact_by_res(factors, least) for least in (RESOLUTION, RESOLUTION + 1))
    chosen = better if len(better) == len(fraction) else fraction
    return tuple(tuple(int(sign) for sign in row) for row in reversed(chosen))


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
    count, fewest, most = len(factors), *FRACTION_FACTORS
    size = math.prod(1 + len(factor.levels) for factor in factors)
    if design == "add-one-in" and not any(factor.removable for factor in factors):
        return "adding parts one by one needs a part that can be removed: all have `levels`"
    if design == "full" and (count > FULL_FACTORS or size > FULL_ARMS):
        shape = f"{count} parts in {size:,} networks"
        return f"a full design has at most {FULL_FACTORS} parts and {FULL_ARMS} networks, not {shape}: take fractional"
    if design == "fractional" and not fewest <= count <= most:
        return f"a fractional design has {fewest} to {most} parts, not {count}" + ": take full" * (count < fewest)
    if design == "fractional" and any(len(factor.levels) > 1 for factor in factors):
        named = next(factor.name for factor in factors if len(factor.levels) > 1)
        return f"every part of a fractional design has two levels, and {named} has more"
    return ""


def factorial(factors: Sequence[Factor], listed: Iterable[Arm]) -> tuple[Arm, ...]:
    """Return the arms, of those listed, that estimate interactions: all of the full design or fraction, or none."""
    there = set(listed)
    designs: tuple[Design, ...] = ("full", "fractional")
    possible = [arms(factors, (design,)) for design in designs if not faults(factors, (design,))]
    return next((own for own in possible if len(factors) > 1 and there.issuperset(own)), ())


def terms(factors: Sequence[Factor]) -> tuple[Term, ...]:
    """Return every main effect, then every interaction of two factors."""
    names = [factor.name for factor in factors]
    return (*((name,) for name in names), *itertools.combinations(names, 2))


def aliases(factors: Sequence[Factor], listed: Sequence[Arm]) -> dict[Term, tuple[Term, ...]]:
    """Return the terms that a two-level design can estimate, each with the terms that are estimated together with it.

    Terms with the same sign in every arm cannot be told apart: their sum is estimated. A main effect is named first.
    """
    found: dict[tuple[int, ...], list[Term]] = {}
    for term in terms(factors):
        found.setdefault(_column(term, listed), []).append(term)
    return {same[0]: tuple(same[1:]) for same in found.values()}


def confounded(factors: Sequence[Factor], listed: Iterable[Arm]) -> tuple[tuple[str, ...], ...]:
    """Return the sets of terms, such as `a:b`, that the factorial arms of those listed cannot tell apart."""
    own = factorial(factors, listed)
    if not own or any(len(factor.levels) > 1 for factor in factors):
        return ()
    found = aliases(factors, own)
    return tuple((term_name(factors, one), *alias_names(factors, one, same)) for one, same in found.items() if same)


def term_name(factors: Sequence[Factor], term: Term) -> str:
    """Return the name of a term of a two-level design: `mlp:similarity-shared`."""
    own = {f.name: f.name if f.removable else f"{f.name}-{f.levels[0]}" for f in factors}
    return ":".join(own[name] for name in term)


def alias_names(factors: Sequence[Factor], term: Term, others: Iterable[Term]) -> tuple[str, ...]:
    """Return the terms that are added to the estimate of `term`, those that are subtracted with a minus sign.

    The effect of another form is counted from the complete network to that form, the effect of a part the other way.
    """
    forms = {factor.name for factor in factors if not factor.removable}
    odd = len(forms.intersection(term)) % 2
    return tuple(
        ("−" if len(forms.intersection(other)) % 2 != odd else "") + term_name(factors, other) for other in others
    )


def resolution(factors: Sequence[Factor], listed: Sequence[Arm]) -> int:
    """Return the resolution of a fraction: the number of factors in the shortest word of its defining relation.

    Words of more than five factors are not looked for: the resolution is then given as 6.
    """
    names = [factor.name for factor in factors]
    for length in range(1, 6):
        for word in itertools.combinations(names, length):
            if len(set(_column(word, listed))) == 1:
                return length
    return 6


def _column(term: Term, listed: Sequence[Arm]) -> tuple[int, ...]:
    """Return the sign of a term in every arm: the product of its factors' signs, +1 as in the complete network."""
    return tuple((-1) ** sum(name in dict(arm) for name in term) for arm in listed)


def merge_settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of `two` added; `two` wins where both set the same."""
    merged = dict(one)
    for name, value in two.items():
        inside = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge_settings(merged[name], value) if inside else value
    return merged
