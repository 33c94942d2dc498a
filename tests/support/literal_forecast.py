"""The default rule of early stopping written a second time, from its words with plain loops."""

from __future__ import annotations

import math
from statistics import median

Row = tuple[float, ...]
Stream = list[tuple[int, int, Row]]  # trial, epoch, losses and violations


def literal_forecast(stream: Stream, *, epochs: int, objectives: int, several: bool) -> list[bool]:
    """Return for each report but a trial's last one whether its trial goes on.

    `several` says that more than one objective is learned. A trial is complete with its report of `epochs`.
    """
    told: dict[int, list[tuple[int, Row]]] = {}
    looks: dict[int, list[int]] = {part: [] for part in (8, 4, 2)}
    answers = []
    for trial, epoch, row in stream:
        told.setdefault(trial, []).append((epoch, row))
        if epoch == epochs:
            continue
        reached = [part for part in (2, 4, 8) if epoch >= math.ceil(epochs / part)]
        if len(told[trial]) == 1 or not reached or trial in looks[reached[0]]:
            answers.append(True)
            continue
        looks[reached[0]].append(trial)
        answers.append(may_win(trial, looks[reached[0]], told, epochs, reached[0], objectives, several))
    return answers


def may_win(
    trial: int,
    looked_at: list[int],
    told: dict[int, list[tuple[int, Row]]],
    epochs: int,
    part: int,
    objectives: int,
    several: bool,
) -> bool:
    """Return whether no rival dominates the best end that a trial can be expected to reach."""
    at = {  # the reports of each trial up to its own look
        each: told[each][: next(i + 1 for i, (e, _) in enumerate(told[each]) if i and e >= math.ceil(epochs / part))]
        for each in looked_at
    }
    complete = [each for each in looked_at if told[each][-1][0] == epochs]
    columns = len(told[trial][0][1])
    kinds = ["last" if c >= objectives else "either" if several else "best" for c in range(columns)]
    octaves = math.log2(epochs / at[trial][-1][0])
    forecasts: dict[int, list[float]] = {each: [] for each in looked_at}
    optimistic = []
    for column, kind in enumerate(kinds):
        seen = {each: level([(e, r[column]) for e, r in at[each]], kind) for each in looked_at}
        ends = {each: end([(e, r[column]) for e, r in told[each]], kind) for each in complete}
        order = sorted(complete, key=lambda each: ends[each])
        teachers = order[: math.ceil(len(order) / 2)] if column < objectives else order
        moved = [(seen[t][0] - ends[t]) / seen[t][1] for t in teachers if large(seen[t][1], seen, teachers, 1)]
        gained = [(seen[t][2] - ends[t]) / seen[t][3] for t in teachers if large(seen[t][3], seen, teachers, 3)]
        middle = (octaves + len(moved) * median(moved)) / (2 + len(moved)) if moved else 0.5 * octaves
        high = quantile(gained) if gained else 0.0
        floor = 0.75 * octaves if objectives == 1 or column >= objectives else None
        high = max(high, floor) if floor is not None else (octaves + len(gained) * high) / (2 + len(gained))
        for each in looked_at:
            forecasts[each].append(seen[each][0] - middle * seen[each][1])
        optimistic.append(seen[trial][2] - max(high, middle) * seen[trial][3] - 2 * spread(at, told, column))
    kept = [tuple(ends_of(told[each], kinds)) for each in complete]
    kept = [row[:objectives] for row in kept if all(value <= 0 for value in row[objectives:])]
    if any(value > 0 for value in optimistic[objectives:]):
        return not kept
    rivals = kept + [
        tuple(forecasts[each][:objectives])
        for each in looked_at
        if each != trial and each not in complete and all(value <= 0 for value in forecasts[each][objectives:])
    ]
    own = tuple(optimistic[:objectives])
    return not any(all(x <= y for x, y in zip(rival, own, strict=True)) and rival != own for rival in rivals)


def large(value: float, seen: dict[int, tuple[float, float, float, float]], teachers: list[int], place: int) -> bool:
    """Return whether a change is more than rounding, beside the largest one."""
    return abs(value) > 1e-6 * max(abs(seen[each][place]) for each in teachers)


def level(reports: list[tuple[int, float]], kind: str) -> tuple[float, float, float, float]:
    """Return where a trial is and its last change; and its least value and last gain."""
    half = reports[-1][0] / 2
    old = [value for epoch, value in reports if epoch <= half] or [reports[0][1]]
    new = [value for epoch, value in reports[len(old) :]] or old
    if is_best(reports, kind):
        best = min(old + new)
        return best, min(old) - best, best, min(old) - best
    gain = max(min(old) - min(new), 0.0)
    if reports[-1][1] > old[-1]:
        return max(new), min(max(old) - max(new), 0.0), min(new), gain
    return min(new), gain, min(new), gain


def is_best(reports: list[tuple[int, float]], kind: str) -> bool:
    """Return whether the best report counts."""
    values = [value for _, value in reports]
    return kind == "best" or (kind == "either" and min(values) < values[0])


def end(reports: list[tuple[int, float]], kind: str) -> float:
    """Return the value that counts of a complete trial."""
    return min(value for _, value in reports) if is_best(reports, kind) else reports[-1][1]


def ends_of(reports: list[tuple[int, Row]], kinds: list[str]) -> list[float]:
    """Return the values that count, by column."""
    return [end([(e, row[column]) for e, row in reports], kind) for column, kind in enumerate(kinds)]


def spread(at: dict[int, list[tuple[int, Row]]], told: dict[int, list[tuple[int, Row]]], column: int) -> float:
    """Return the standard deviation of a difference of two reports, from how three in a row bend."""
    bends = []
    for each, reports in at.items():
        place = max(len(reports), 3)
        if len(told[each]) >= place:
            (e1, first), (e2, middle), (e3, last) = told[each][place - 3 : place]
            w = (e3 - e2) / (e3 - e1)  # the share of the first report
            off = middle[column] - w * first[column] - (1 - w) * last[column]
            bends.append(off / math.sqrt(w**2 + 1 + (1 - w) ** 2))
    return median(abs(b - median(bends)) for b in bends) * math.sqrt(2) / 0.6745 if bends else 0.0


def quantile(values: list[float]) -> float:
    """Return the 75% quantile with linear interpolation."""
    ordered = sorted(values)
    place = 0.75 * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
