"""Quantities as Kubernetes writes them: `500m`, `32Gi`, `1e3`."""

from __future__ import annotations

import re
from fractions import Fraction

QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
SUFFIXES = {name: Fraction(1000) ** power for power, name in enumerate(("n", "u", "m", "", "k", "M", "G", "T"), -3)}
SUFFIXES |= {"P": Fraction(10**15), "E": Fraction(10**18)}
SUFFIXES |= {f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", 1)}


def number(quantity: str | int | float) -> Fraction:
    """Return `quantity` as a number; raise ValueError if it is not a quantity."""
    found = QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity of Kubernetes'")
    digits, suffix, exponent = found.groups()
    return Fraction(digits) * (Fraction(10) ** int(exponent) if exponent else SUFFIXES[suffix or ""])
