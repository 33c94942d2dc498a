"""The rules of objectives: direction, log scale, constraints, the front, means over replicates, names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ablate.base.plain_text import counted, metric_name_fault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZE_METRICS = ("params", "params_body", "flops")  # counted on the built model, before any training
UNTESTED = "`confirm: null`, in a comparison metrics with `val_`, in a campaign `close: {test: false}`"  # leaves it out
COST_METRICS = (*SIZE_METRICS, "wall_seconds")  # of the trial as a whole, the same for all its replicates
SIZE_COLUMNS = (*SIZE_METRICS, "q")  # what tables show of a size; q is K M / P (paper A, Eq. 12)
TAKEN = (  # columns of a trials table that no cost of a user's `size` can have
    "study", "dataset", "trial", "stage", "source", "variant", "state", "attempt", "replicates", "epochs", "max_epochs",
    "q", "validation_samples", "test_samples", "wall_seconds", "error", "checkpoint", "mlflow_run_id", "created_at",
    "started_at", "finished_at", "parameters",
)  # fmt: skip
LARGEST_VALUE = 1e100  # of a metric; larger ones overflow where they are squared
ROUNDING = 1e-6  # by which a mean of float32 shares may leave 0 to 1
LOG_FLOOR = 1e-12  # what a smaller value counts as where an objective has log: true
# words of the names of metrics that are better when higher, and when lower
HIGHER = frozenset({"acc", "accuracy", "auc", "bleu", "f1", "iou", "map", "precision", "r2", "recall"})
LOWER = frozenset({"error", "logloss", "loss", "mae", "perplexity", "rmse", "wer"})
REVERSED = {"neg", "negative", "minus", "inverse", "gap", "drop", "delta", "difference", "reduction"}
OTHERWISE = REVERSED | {"std", "size", "scale", "count", "time", "seconds"}  # with these it is another quantity
_WORD = re.compile(r"f1(?![0-9])|r2(?![0-9])|[^\W\d_]+")
COMPLETE, PRUNED = "COMPLETE", "PRUNED"
STATE_ORDER = (COMPLETE, PRUNED, "FAIL", "RUNNING", "WAITING")  # the order of states in lists: ended ones first


def is_share(metric: str) -> bool:
    """Return whether a metric is a share, from 0 to 1."""
    return metric.endswith("accuracy")


def is_evaluated(metric: str) -> bool:
    """Return whether a metric is of the validation or the test split."""
    return metric.startswith(("val_", "test_"))


def is_of_training(metric: str) -> bool:
    """Return whether a metric is of the training, validation or test split, so that runs differ in it by chance."""
    return is_evaluated(metric) or metric.startswith("train_")


def is_cost(metric: str) -> bool:
    """Return whether a metric that a study declares is a cost: of the trial as a whole, the same for all its seeds.

    It is known before training, but for `wall_seconds`. What is measured by training starts with `val_` or `train_`.
    """
    return not is_of_training(metric)


def is_size(metric: str) -> bool:
    """Return whether a metric that a study declares is a cost that can be known before training."""
    return is_cost(metric) and metric != "wall_seconds"


def cost_name_fault(name: object) -> str:
    """Return why a user's `size` cannot give a cost of this name; empty if it can."""
    if not isinstance(name, str):
        return "its name is text"
    if is_of_training(name) or name in TAKEN:
        return "the name is taken; names with val_, train_ or test_ are of what training measures: choose another"
    return metric_name_fault(name)


def on_test(metric: str) -> str:
    """Return the test split's metric for one of the validation split; other metrics are returned unchanged."""
    return f"test_{metric.removeprefix('val_')}" if metric.startswith("val_") else metric


def on_validation(metric: str) -> str:
    """Return the validation split's metric for one of the test split (inverse of `on_test`)."""
    return f"val_{metric.removeprefix('test_')}" if metric.startswith("test_") else metric


def given_for(values: Mapping[str, float], metric: str) -> float | None:
    """Return what `values` give for a metric; a value of a `val_` metric is also that of its `test_` metric."""
    return values.get(metric, values.get(on_validation(metric)))


class ObjectiveLike(Protocol):
    """What the rules read of an objective (ablate.study.sections.Objective).

    The direction is `maximize` or `minimize`; `log` says whether the axis is measured in log10.
    """

    @property
    def metric(self) -> str: ...
    @property
    def direction(self) -> str: ...
    @property
    def log(self) -> bool: ...


class ConstraintLike(Protocol):
    """What the rules read of a constraint (ablate.study.sections.Constraint).

    `op` is `<=` or `>=`; the bound is in the metric's own unit.
    """

    @property
    def metric(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def bound(self) -> float: ...


Objective = TypeVar("Objective", bound=ObjectiveLike)
Column = Callable[[str], Sequence[float]]  # a metric's value of every trial, NaN where a trial has none


def mean(values: Iterable[float | None]) -> float:
    """Return the mean over replicates; NaN if a replicate has no value, or if there is no replicate.

    The mean of the other replicates would hide that one of them diverged or did not report (docs/tables.md).
    """
    found = list(values)
    return sum(math.nan if value is None else float(value) for value in found) / len(found) if found else math.nan


def means(replicates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric that a replicate reported, in order of first appearance (see `mean`)."""
    if len(replicates) == 1:
        return dict(replicates[0])
    names = dict.fromkeys(name for metrics in replicates for name in metrics)
    return {name: mean(metrics.get(name) for metrics in replicates) for name in names}


def is_maximized(objective: ObjectiveLike) -> bool:
    """Return whether a larger value is the better one."""
    return objective.direction == "maximize"


def is_higher_better(metric: str, objectives: Iterable[ObjectiveLike]) -> bool | None:
    """Return whether higher values of a metric are better, or None if nothing says so.

    The objective of the metric, or of its validation metric, says it. Otherwise the words of its name say it, unless
    they disagree (`val_loss_accuracy`) or name another quantity (`val_map_size`).
    """
    declared = {objective.metric: is_maximized(objective) for objective in objectives}
    for name in (metric, on_validation(metric)):
        if name in declared:
            return declared[name]
    words = set(_WORD.findall(metric.lower()))
    up, down = bool(words & HIGHER), bool(words & LOWER)
    return None if up == down or words & OTHERWISE else up


def unknown_direction(metric: str) -> str:
    """Return why the direction of a metric must be declared, as the rule of a fault."""
    known = ", ".join(sorted(HIGHER | LOWER))
    return f"whether higher values of {metric} are better is not known, and its name does not say it ({known} do)"


def quality_objective(objectives: Sequence[Objective]) -> Objective:
    """Return the first objective that is not a cost, or the first one when all are."""
    return next((o for o in objectives if not is_cost(o.metric)), objectives[0])


def signed(objective: ObjectiveLike, value: float) -> float:
    """Return `value` in the metric's own unit, with the sign that makes the smaller value the better one."""
    return -value if is_maximized(objective) else value


def loss(objective: ObjectiveLike, value: float) -> float:
    """Return `signed`, in log10 if the objective asks for it.

    NaN stays NaN. Under a logarithm a value below LOG_FLOOR counts as LOG_FLOOR, so that a perfect trial is the best.
    """
    if objective.log and not math.isnan(value):
        value = math.log10(max(value, LOG_FLOOR))
    return signed(objective, value)


def value_fault(objectives: Iterable[ObjectiveLike], metric: str, value: float) -> str:
    """Return why a reported value can be none of its metric, an objective's on either split or another; else "".

    NaN and infinity are values of every metric: they diverged.
    """
    if not math.isfinite(value):
        return ""
    objective = next((each for each in objectives if metric in (each.metric, on_test(each.metric))), None)
    if objective is not None and objective.log and value < 0:
        return f"{metric} is {value:g}, and its objective has log: true, which needs values from 0: write log: false"
    if objective is not None and abs(value) > LARGEST_VALUE:
        return f"{metric} is {value:g}, and no mean is taken of numbers beyond {LARGEST_VALUE:g}: report nan"
    if is_share(metric) and not -ROUNDING <= value <= 1 + ROUNDING:
        return (
            f"{metric} is {value:g}, and a metric whose name ends with accuracy is a share from 0 to 1: report the "
            "share (a command's metric: `scale: 0.01`), or give it another name"
        )
    return ""


def losses(objectives: Iterable[ObjectiveLike], values: Iterable[float]) -> tuple[float, ...]:
    """Return the loss of each objective's value."""
    return tuple(loss(objective, value) for objective, value in zip(objectives, values, strict=True))


def room(constraint: ConstraintLike, value: float) -> float:
    """Return how far `value` is inside the bound, in the metric's unit; below 0 it violates the bound."""
    return constraint.bound - value if constraint.op == "<=" else value - constraint.bound


def violation(constraint: ConstraintLike, value: float) -> float:
    """Return by how much `value` violates the bound, relative to it: above 0 is a violation, NaN counts as 1."""
    return 1.0 if math.isnan(value) else -room(constraint, value) / (abs(constraint.bound) or 1.0)


def constraint_text(constraint: ConstraintLike) -> str:
    """Return a constraint as a study file writes it: `params <= 200000`."""
    return f"{constraint.metric} {constraint.op} {constraint.bound:g}"


def stopped_text(constraints: Sequence[ConstraintLike], states: Sequence[str], column: Column) -> str:
    """Return how many trials that kept every constraint at their last report were stopped early; empty if none was."""
    ended = [
        state
        for state, *row in zip(states, *(column(each.metric) for each in constraints), strict=True)
        if state in (COMPLETE, PRUNED) and all(violation(c, v) <= 0 for c, v in zip(constraints, row, strict=True))
    ]
    if not constraints or not (stopped := ended.count(PRUNED)):
        return ""
    bounds = " and ".join(f"`{constraint_text(each)}`" for each in constraints)
    are = "was" if stopped == 1 else "were"
    return f"of {counted(len(ended), 'trial')} that kept {bounds} at their last report, {stopped} {are} stopped early"


def no_front_text(complete: int, constraints: Iterable[ConstraintLike]) -> str:
    """Return why there is no front, given the number of complete trials."""
    if not complete:
        return "no trial is complete"
    kept = " and ".join(map(constraint_text, constraints))
    rule = f"keeps {kept}" if kept else "has a value of every objective"
    return f"{counted(complete, 'trial')} {'is' if complete == 1 else 'are'} complete, and none {rule}"


def may_stand(
    objectives: Sequence[ObjectiveLike], constraints: Sequence[ConstraintLike], states: Sequence[str], column: Column
) -> list[bool]:
    """Return which trials are eligible for a front: COMPLETE, every objective finite, every constraint kept."""
    kept = [state == COMPLETE for state in states]
    for objective in objectives:
        kept = [may and math.isfinite(v) for may, v in zip(kept, column(objective.metric), strict=True)]
    for constraint in constraints:
        kept = [may and violation(constraint, v) <= 0 for may, v in zip(kept, column(constraint.metric), strict=True)]
    return kept


def on_front(
    objectives: Sequence[ObjectiveLike], constraints: Sequence[ConstraintLike], states: Sequence[str], column: Column
) -> list[bool]:
    """Return which trials are on the front: the eligible ones that no other eligible trial dominates.

    The search confirms this front; page, terminal and status show it; trackers publish it.
    """
    kept = may_stand(objectives, constraints, states, column)
    rows = list(zip(*(column(objective.metric) for objective in objectives), strict=True))
    best = iter(nondominated([row for row, may in zip(rows, kept, strict=True) if may], objectives))
    return [may and next(best) for may in kept]


def nondominated(rows: Sequence[Sequence[float]], objectives: Sequence[ObjectiveLike]) -> list[bool]:
    """Return which of `rows` [n, m] of finite values no other row dominates; equal rows get the same answer.

    A row dominates another when it is no worse on every objective and better on at least one. Values are compared
    without logarithms: on a log axis the order is the same, and rounding cannot make two of them equal.
    """
    if not len(rows) or not objectives:
        return [False] * len(rows)
    points = [[signed(objective, value) for objective, value in zip(objectives, row, strict=True)] for row in rows]
    if len(objectives) == 1:
        best = min(points)
        return [point == best for point in points]
    return nondominated_losses(points)


def nondominated_losses(points: Any) -> list[bool]:
    """Return which of `points` [n, m] of finite losses no other one dominates (see `nondominated`)."""
    import moocore  # imported late: with numpy it takes 0.25 s, and reading a study file needs neither

    library: Any = moocore
    return [bool(kept) for kept in library.is_nondominated(points, keep_weakly=True)]


def best_first(
    kinds: Sequence[int] | NDArray[Any], violations: Any, points: Any
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the places of trials, the best first, and the non-dominated rank of each: the order of everything.

    A trial is before another of a larger kind [n]; of one kind those come first that keep all constraints, then those
    that violate them least in sum (`violations` [n], 0 or below where all are kept). Losses (`points` [n, m]) decide
    among these: one by its value, which then is the rank, several by non-dominated rank and by the first of them. Equal
    ones stay in their order. A missing loss is infinite, not NaN.
    """
    import moocore
    import numpy as np

    kinds, broken = np.asarray(kinds), np.maximum(np.asarray(violations, dtype=float), 0)
    points = np.clip(np.asarray(points, dtype=float), -1e300, 1e300)
    ranks = points[:, 0].copy()
    for group in {*zip(kinds, broken > 0, strict=True)} if points.shape[1] > 1 else ():
        own = (kinds == group[0]) & ((broken > 0) == group[1])
        ranks[own] = moocore.pareto_rank(points[own])
    return np.lexsort((points[:, 0], ranks, broken, kinds)), ranks


def ranked(
    objectives: Sequence[ObjectiveLike], constraints: Sequence[ConstraintLike], states: Sequence[str], column: Column
) -> list[int]:
    """Return the places of trials in the order of `best_first`: by state in STATE_ORDER, then constraints first.

    A trial without a finite value of every objective comes after all others of its state.
    """
    if not len(states):
        return []
    rows = list(zip(*(column(objective.metric) for objective in objectives), strict=True))
    unknown = [not all(map(math.isfinite, row)) for row in rows]
    points = [[math.inf if gap else x for x in losses(objectives, row)] for row, gap in zip(rows, unknown, strict=True)]
    broken = [math.inf if gap else 0.0 for gap in unknown]
    for each in constraints:
        broken = [sum_ + max(violation(each, v), 0.0) for sum_, v in zip(broken, column(each.metric), strict=True)]
    return [int(i) for i in best_first([STATE_ORDER.index(state) for state in states], broken, points)[0]]


def winner(objective: ObjectiveLike, constraints: Sequence[ConstraintLike], column: Column) -> int | None:
    """Return the place of the first of `ranked` for complete trials; None if none has a finite value."""
    values = column(objective.metric)
    if not any(map(math.isfinite, values)):
        return None
    return ranked([objective], constraints, [COMPLETE] * len(values), column)[0]


def count_states(states: Iterable[str]) -> dict[str, int]:
    """Return how many of `states` are in each state, in STATE_ORDER, 0 included."""
    counts = Counter(map(str, states))
    return {state: counts[state] for state in STATE_ORDER}
