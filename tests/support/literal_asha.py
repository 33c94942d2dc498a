"""Asynchronous successive halving written a second time, from the words of its rule with plain loops."""

from __future__ import annotations

import math
from statistics import median

Stream = list[tuple[int, int, tuple[float, ...]]]


def literal_asha(
    stream: Stream, *, reduction: int, first: int, epochs: int, keep_front: bool, tolerance: float = 2.0
) -> list[bool]:
    """Return for each report whether its trial goes on, written from the rule's words with plain loops."""
    rungs = [first * reduction**k for k in range(20) if first * reduction**k < epochs]
    fronts = keep_front and len(stream[0][2]) > 1
    told: dict[int, list[tuple[int, tuple[float, ...]]]] = {}
    seen: dict[int, list[tuple[int, int, tuple[float, ...]]]] = {}  # by rung: trial, its how-many-th report, losses
    answers = []
    for trial, epoch, losses in stream:
        told.setdefault(trial, []).append((epoch, losses))
        reached = [r for r in rungs if r <= epoch]
        if not reached or any(t == trial for t, _, _ in seen.setdefault(max(reached), [])):
            answers.append(True)
            continue
        rung = seen[max(reached)]
        own = projected(told[trial]) if fronts else losses
        rung.append((trial, len(told[trial]), own))
        order = sorted_best_first([values for _, _, values in rung])
        better = sum(1 for other in order if other < order[-1])
        answers.append(better < max(1, len(rung) // reduction))
        if fronts and not answers[-1] and not any(map(math.isnan, own)):
            spread = [bend(told[t], place) for t, place, _ in rung if len(told[t]) >= max(place, 3)]
            spread = [row for row in spread if not any(map(math.isnan, row))]
            sds = [math.sqrt(2) * deviation(axis) for axis in zip(*spread, strict=True)] or [0.0] * len(own)
            moved = tuple(x - tolerance * sd for x, sd in zip(own, sds, strict=True))
            answers[-1] = not any(dominates(values, moved) for _, _, values in rung)
    return answers


def projected(reports: list[tuple[int, tuple[float, ...]]]) -> tuple[float, ...]:
    """Return the best losses of the second half, moved on by a quarter of what has changed since those of the first.

    A report in the middle is in both halves, the last one in the second alone.
    """
    epoch, now = reports[-1]
    moved = []
    for axis, last in enumerate(now):
        late = [values[axis] for past, values in reports if 2 * past >= epoch + 1 and values[axis] == values[axis]]
        early = [
            values[axis] for past, values in reports[:-1] if 2 * past <= epoch + 1 and values[axis] == values[axis]
        ]
        if last != last:
            moved.append(last)
        elif early and abs(min(late) - min(early)) < math.inf:
            moved.append(min(late) + 0.25 * (min(late) - min(early)))
        else:
            moved.append(min(late))
    return tuple(moved)


def deviation(values: tuple[float, ...]) -> float:
    """Return the standard deviation of normal values, from their median absolute deviation."""
    return median(abs(value - median(values)) for value in values) / 0.6745


def bend(reports: list[tuple[int, tuple[float, ...]]], place: int) -> tuple[float, ...]:
    """Return how far the middle one of three reports is above the line, for reports of variance 1 with variance 1.

    The three end with the report of that place, counted from 1, or are the trial's first three.
    """
    (e1, first), (e2, middle), (e3, last) = reports[max(place, 3) - 3 : max(place, 3)]
    w = (e3 - e2) / (e3 - e1)  # the share of the first report
    unit = math.sqrt(w**2 + 1 + (1 - w) ** 2)
    return tuple((b - a - (1 - w) * (c - a)) / unit for a, b, c in zip(first, middle, last, strict=True))


def sorted_best_first(points: list[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Return a sort key per point: (rank by peeling fronts, minus crowding distance); NaN last."""
    left = {i for i, p in enumerate(points) if not any(map(math.isnan, p))}
    keys = {i: (math.inf, 0.0) for i in range(len(points)) if i not in left}
    rank = 0
    while left:
        peel = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        distances = crowding_by_definition([points[i] for i in sorted(peel)])
        keys |= {i: (rank, -d) for i, d in zip(sorted(peel), distances, strict=True)}
        left -= peel
        rank += 1
    return [keys[i] for i in range(len(points))]


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return whether `a` is nowhere worse than `b` and somewhere better."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def crowding_by_definition(points: list[tuple[float, ...]]) -> list[float]:
    """Return per point the sum over objectives of its neighbours' gap, over distinct points."""
    distinct = sorted(set(points))
    if len(points[0]) == 1:
        return [0.0] * len(points)
    total = dict.fromkeys(distinct, 0.0)
    for axis in range(len(points[0])):
        values = [p[axis] for p in distinct]
        for p in distinct:
            if p[axis] in (min(values), max(values)):
                total[p] = math.inf
                continue
            ranked = sorted(distinct, key=lambda q: q[axis])
            place = ranked.index(p)
            total[p] += (ranked[place + 1][axis] - ranked[place - 1][axis]) / (max(values) - min(values))
    return [total[p] for p in points]
