"""Asynchronous successive halving written a second time, from the words of its rule with plain loops."""

from __future__ import annotations

import math

Stream = list[tuple[int, int, tuple[float, ...]]]


def literal_asha(stream: Stream, *, reduction: int, first: int, epochs: int) -> list[bool]:
    """Return for each report whether its trial goes on, written from the rule's words with plain loops."""
    rungs = [first * reduction**k for k in range(20) if first * reduction**k < epochs]
    seen: dict[int, list[tuple[int, tuple[float, ...]]]] = {}  # by rung: trial, losses
    answers = []
    for trial, epoch, losses in stream:
        reached = [r for r in rungs if r <= epoch]
        if not reached or any(t == trial for t, _ in seen.setdefault(max(reached), [])):
            answers.append(True)
            continue
        rung = seen[max(reached)]
        rung.append((trial, losses))
        order = sorted_best_first([values for _, values in rung])
        better = sum(1 for other in order if other < order[-1])
        answers.append(better < max(1, len(rung) // reduction))
    return answers


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
