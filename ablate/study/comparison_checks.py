"""Faults of a designed comparison: unknown names, and settings that contradict it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ablate.errors import Fault, did_you_mean
from ablate.objectives import COST_METRICS, is_higher_better, is_share, on_test
from ablate.study.sections import Compare
from ablate.study.study import Study


def comparison_faults(study: Study) -> Iterator[Fault]:
    """Yield the faults of `compare`, `parts`, `settings` and `only`."""
    yield from _unknown_names(
        "only", study.only or (), [*study.datasets, *(study.compare.columns if study.compare else ())]
    )
    for index, row in enumerate(study.settings):
        yield from _unknown_names(f"settings.{index}.datasets", row.datasets, study.datasets)
    if study.parts and study.variants:
        yield Fault(path="parts", value=None, rule="give `variants` or `parts`, not both: parts make the variants")
    if study.sampler.name == "design" and study.compare is None:
        yield Fault(path="sampler.name", value="design", rule="this sampler walks a comparison: give `compare`")
    if study.compare is not None:
        yield from _compare_faults(study, study.compare)


def _compare_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    own = {"sampler": study.sampler.name == "design", "scheduler": study.scheduler.name == "none"}
    for section, fits in (own | {"confirm": study.confirm is None}).items():
        if not fits:
            rule = "a comparison trains its whole design in full, once: leave this out"
            yield Fault(path=section, value=None, rule=rule)
    rows = [row.name for row in study.rows]
    if not rows:
        yield Fault(path="compare", value=None, rule="a comparison needs `variants` or `parts` to compare")
        return
    for metric in compare.metrics if study.protocol == "paper" else ():
        if metric.startswith("test_"):
            rule = f"under `protocol: paper` validation is the test split: write val_{metric.removeprefix('test_')}"
            yield Fault(path="compare.metrics", value=metric, rule=rule)
    yield from _unknown_names("compare.baseline", (compare.baseline,), rows)
    for column, labels in compare.columns.items():
        yield from _unknown_names(f"compare.columns.{column}", labels, study.datasets)
    yield from _margin_faults(study, compare)
    columns = list(compare.columns) or list(study.datasets)
    for metric, by_column in compare.published.items():
        path = f"compare.published.{metric}"
        yield from _unknown_names(path, (metric,), [*compare.metrics, "params", "q"])
        yield from _unknown_names(path, by_column, columns)
        for column, cells in by_column.items():
            yield from _unknown_names(f"{path}.{column}", cells, rows)
            for variant, figure in cells.items():
                if is_share(metric) and not 0 <= figure.value <= 1:
                    rule = f"an accuracy is a share, not percent: {figure.value / 100:g}?"
                    yield Fault(path=f"{path}.{column}.{variant}", value=figure.value, rule=rule)


def _margin_faults(study: Study, compare: Compare) -> Iterator[Fault]:
    """Yield the faults of `margin` and `diverged`: unknown metrics, percent for shares, and no better direction."""
    tested = [on_test(metric) for metric in compare.metrics] if study.protocol == "held_out" else []
    seeded = [metric for metric in dict.fromkeys([*compare.metrics, *tested]) if metric not in COST_METRICS]
    for key, values in (("margin", compare.margin), ("diverged", compare.diverged)):
        path = f"compare.{key}"
        yield from _unknown_names(path, values, seeded)
        for metric, value in values.items():
            if is_share(metric) and not (0 <= value < 1 or (key == "diverged" and value == 1)):
                rule = f"an accuracy is a share, not percent: {value / 100:g}?"
                yield Fault(path=f"{path}.{metric}", value=value, rule=rule)
    for metric in compare.margin:
        if metric in seeded and is_higher_better(metric, study.objectives) is None:
            rule = f"whether higher values are better is not known: declare {metric} in `objectives`"
            yield Fault(path=f"compare.margin.{metric}", value=None, rule=rule)


def _unknown_names(path: str, names: Iterable[str], known: Iterable[str]) -> Iterator[Fault]:
    listed = list(dict.fromkeys(known))
    for name in names:
        if name not in listed:
            yield Fault(path=path, value=name, rule=f"this name is not known here. {did_you_mean(name, listed)}")
