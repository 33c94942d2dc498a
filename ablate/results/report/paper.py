"""The table of a study for a paper: settings that differ, objectives with intervals, the best in bold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.plain_text import finite, short_name
from ablate.core.objectives import is_higher_better, is_share, on_test, on_validation, quality_objective
from ablate.results.comparison.design import JUDGED
from ablate.results.comparison.rows import BASELINE, comparison, first_metric
from ablate.results.comparison.verdicts import EQUIVALENT, NON_INFERIOR
from ablate.results.front.findings import findings
from ablate.results.front.table import KNOWN
from ablate.results.front.tables import (
    declared_metrics,
    model_settings,
    objective_value,
    other_objectives,
    other_settings,
    quality_name,
)
from ablate.results.rendering.grid import Row
from ablate.results.rendering.latex import NOTHING, Number, PaperColumn, escape, formula, number_cells, paper_table
from ablate.results.rendering.numbers import capital, equal_seeds, says_little, spell_metric, unit_text
from ablate.results.statistics.looks import ERROR
from ablate.results.trials.results import Results
from ablate.study import Study

DIFFERS, ALIKE = "*", r"\dagger"
Make = Callable[[Sequence[Row]], list[str]]  # of the rows of a column


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a table may hold: its columns by name, those that it has by default, and its caption as LaTeX."""

    columns: Mapping[str, Sequence[PaperColumn]]
    default: Sequence[str]
    caption: Callable[[Iterable[str]], str]


@dataclass(frozen=True)
class Names:
    """The names of a paper in the place of those of a study; `used` holds those that occurred."""

    given: Mapping[str, str]
    used: set[str]

    def of(self, name: str, shown: str | None = None) -> str:
        """Return the paper's name, or without one `shown`, by default the name itself."""
        shown = name if shown is None else shown
        for each in (name, shown):
            if each in self.given:
                self.used.add(each)
                return self.given[each]
        return shown


def paper(results: Results, columns: Sequence[str] = (), named: Mapping[str, str] | None = None) -> str:
    """Return the table of a comparison, or of the fronts of a search, as LaTeX (docs/report.md).

    `columns` are names, in order; `named` are the paper's names. Raises RequestError for a name that is not there.
    """
    study, names = results.study, Names(named or {}, set())
    if study.campaign is not None:
        raise RequestError(
            f"{study.name} is a campaign, which has no table for a paper; its campaign.csv has every number"
        )
    known = _of_search(results, names) if study.compare is None else _of_comparison(results, names)
    asked = columns or known.default
    for name in asked:
        if name not in known.columns:
            hint = did_you_mean(name, known.columns)
            raise RequestError(f"--columns: {name}: no column of {study.name}. {hint}")
    chosen = [each for name in asked for each in known.columns[name]]
    has_bold = any(r"\mathbf" in cell for each in chosen for cell in each.cells)
    text = paper_table(chosen, known.caption(asked) + " Bold: the best." * has_bold, f"tab:{study.name}")
    if lost := [name for name in names.given if name not in names.used]:
        raise RequestError(f"--name: {lost[0]}: nothing in this table has that name")
    return text


def _of_comparison(results: Results, names: Names) -> Known:
    """Return a line for each row; each measure has a column for every column of the study."""
    study = results.study
    table = [row for row in comparison(results).rows(named=True) if row["kind"] in (BASELINE, *JUDGED)]
    there = list(dict.fromkeys(row["variant"] for row in table if row["planned"]))
    metrics = list(dict.fromkeys(row["metric"] for row in table))
    labels = list(dict.fromkeys(row["column"] for row in table))
    cells = {(row["metric"], row["column"], row["variant"]): row for row in table}
    found = {"variant": [PaperColumn(heading="", cells=[escape(names.of(name)) for name in there], is_text=True)]}

    def add(name: str, heading: str, metric: str, make: Make) -> None:
        own = [(label, make([cells[metric, label, row] for row in there])) for label in labels]
        shown = names.of(name, heading)
        if len(labels) > 1:
            found[name] = [PaperColumn(heading=names.of(label), group=shown, cells=each) for label, each in own]
        else:
            found[name] = [PaperColumn(heading=shown, cells=own[0][1])]

    add("params", "Parameters", metrics[0], partial(_field, "params", "params"))
    for metric in [each for each in metrics if each not in KNOWN]:
        best = is_higher_better(metric, study.objectives)
        of = partial(_numbers, metric, mark=_mark)
        add(metric, _heading(metric), metric, partial(of, field="mean", ends="mean", best=best))
        add(f"{metric}.difference", _heading(metric, "difference"), metric, partial(of, field="difference", ends=""))
        add(f"{metric}.p", "Adjusted p", metric, lambda rows: [_p(row["p_adjusted"]) for row in rows])
        add(f"{metric}.published", _heading(metric, "published"), metric, partial(_field, metric, "published"))
        add(f"{metric}.seeds", "Seeds", metric, lambda rows: [str(row["seeds"] or NOTHING) for row in rows])
    tested = {on_validation(metric) for metric in metrics if metric.startswith("test_")}
    shown = [metric for metric in metrics if metric not in {*KNOWN, *tested}]
    sizes = {row["params"] for row in table if row["planned"]}
    return Known(
        columns=found,
        default=["variant", *["params"] * (len(sizes) > 1), *shown],
        caption=lambda asked: _comparison_caption(study, [row for row in table if row["planned"]], [*asked], names),
    )


def _comparison_caption(study: Study, rows: Sequence[Row], asked: Sequence[str], names: Names) -> str:
    measured = {row["metric"] for row in rows} - {*KNOWN}
    parts = dict.fromkeys(name.partition(".")[0] for name in asked)
    metrics = [name for name in parts if name in measured] or [first_metric(study)]
    own = [row for row in rows if row["metric"] in metrics]
    marks = {*"".join(map(_mark, own))}
    baseline = escape(names.of(study.compared.baseline))
    said = [_first(study.name, metrics, [row["seeds"] for row in own], _samples(row["samples"] for row in own))]
    if DIFFERS in marks:
        said.append(f"$^{{{DIFFERS}}}$: differs from {baseline} ($p < {ERROR}$, paired by seed, Holm's correction).")
    if {*ALIKE} <= marks:
        margins = {(row["metric"], row["margin"]) for row in own if row["margin"] is not None}
        texts = " and ".join(escape(unit_text(*each)) for each in sorted(margins))
        said.append(f"$^{{{ALIKE}}}$: not worse than {baseline} by more than {texts} ($p < {ERROR}$).")
    if study.scale != 1:
        said.append(f"A study at {study.scale:g} of its scale.")
    return " ".join(said)


def _of_search(results: Results, names: Names) -> Known:
    """Return a line for each network of the front, the data sets one below the other."""
    study, parts = results.study, list(findings(results).values())
    rows = [row for part in parts for row in part.rows]
    if not rows:
        raise RequestError(
            f"{study.name} has no front yet: {parts[0].no_front}" if parts else f"{study.name} has no trial yet"
        )
    quality, metric = quality_name(study), quality_objective(study.objectives).metric
    tested = all(row["split"] == "test" for row in rows)
    settings = [name for name in ("variant", *model_settings(study), *other_settings(study)) if name in rows[0]]
    shown = f"test_{quality}" if tested and metric.startswith("val_") else metric
    found = {"dataset": [_words("Data set", [names.of(row["dataset"]) for row in rows])]}
    for name in settings:
        found[name] = [_setting(names, name, [row[name] for row in rows])]
    found["trial"] = [_words("Trial", [f"{row['trial']}{' (yours)' * bool(row['yours'])}" for row in rows])]

    def add(name: str, heading: str, make: Make) -> None:
        cells = [cell for part in parts for cell in make(part.rows)]
        found[name] = [PaperColumn(heading=names.of(name, heading), cells=cells)]

    of = partial(_numbers, quality, mark=_open)
    add(
        metric,
        _heading(shown),
        partial(of, field=quality, ends=quality, best=is_higher_better(metric, study.objectives)),
    )
    others = [each.metric for each in other_objectives(study)]
    for name in dict.fromkeys([*declared_metrics(study)[1:], *KNOWN]):
        if {name, on_test(name)} & rows[0].keys():
            add(name, _heading(name), partial(_objectives, name))
    add("difference", "To the best", partial(of, field="difference", ends="difference"))
    add("front_probability", "P(front)", lambda rows: [_p(row["front_probability"]) for row in rows])
    add("seeds", "Seeds", lambda rows: [str(row["replicates"]) for row in rows])
    differ = [name for name in settings if len({row[name] for row in rows}) > 1]
    sizes = [name for name in KNOWN if name in found and len({row[name] for row in rows}) > 1]
    known = sizes[:1] if not {*KNOWN} & {*others} else []
    return Known(
        columns=found,
        default=[*["dataset"] * (len(parts) > 1), *(differ or ["trial"]), metric, *others, *known],
        caption=lambda asked: _front_caption(study, rows, quality, shown),
    )


def _front_caption(study: Study, rows: Sequence[Row], quality: str, shown: str) -> str:
    samples = _samples(row[f"{quality}_samples"] for row in rows)
    said = [_first(study.name, [shown], [row["replicates"] for row in rows], samples)]
    if any(row["verdict"] == "not distinguished" for row in rows):
        said.append(f"$^{{{ALIKE}}}$: not distinguished from the best.")
    return " ".join(said)


def _first(study: str, metrics: Sequence[str], seeds: Iterable[int | None], samples: str) -> str:
    """Return what the numbers are: the split, the interval, seeds and samples."""
    counts = sorted({each for each in seeds if each})
    many = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"$n = {counts[0]}$ seeds" if counts else ""
    over = "" if not counts else " of one seed" if counts == [1] else f" with 95\\% intervals over {many}"
    words = escape(capital(", ".join(map(spell_metric, metrics))))
    return f"{words} of {escape(study)}: means{over}{samples}."


def _samples(counts: Iterable[int | None]) -> str:
    known = {each for each in counts if each}
    return f" and {next(iter(known)):,} samples".replace(",", "{,}") if len(known) == 1 else ""


def _heading(metric: str, of: str = "") -> str:
    name = KNOWN[metric][0] if metric in KNOWN else capital(spell_metric(metric))
    unit = "" if not is_share(metric) else " (points)" if of == "difference" else " (%)"
    return f"{name}{of and f', {of}'}{unit}"


def _words(heading: str, texts: Sequence[str]) -> PaperColumn:
    return PaperColumn(heading=heading, cells=[escape(text) for text in texts], is_text=True)


def _setting(names: Names, name: str, values: Sequence[object]) -> PaperColumn:
    """Return the column of a setting: numbers in a formula, other values as they are written."""
    heading = names.of(name, capital(short_name(name)))
    numbers = [value for value in values if value is not None]
    if numbers and all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        cells = [NOTHING if value is None else _exact(float(value)) for value in values]  # type: ignore[arg-type]
        return PaperColumn(heading=heading, cells=cells)
    cells = [NOTHING if value is None else escape(names.of(str(value))) for value in values]
    return PaperColumn(heading=heading, cells=cells, is_text=True)


def _exact(value: float) -> str:
    r"""Return a setting in three digits, a whole number whole: `$3.2 \times 10^{-4}$`."""
    return f"${formula(f'{value:,.0f}' if value.is_integer() and abs(value) < 1e9 else f'{value:.3g}')}$"


def _field(metric: str, field: str, rows: Sequence[Row]) -> list[str]:
    return number_cells(metric, [Number(value=row[field]) for row in rows])


def _objectives(metric: str, rows: Sequence[Row]) -> list[str]:
    return number_cells(metric, [Number(value=finite(objective_value(metric, row))) for row in rows])


def _p(value: float | None) -> str:
    return NOTHING if value is None else "$< 0.001$" if value < 0.001 else f"${value:.3f}$"


def _half(metric: str, mean: float | None, low: float | None, high: float | None) -> float | None:
    """Return the wider side of an interval; None where it says nothing or has no width."""
    if mean is None or low is None or high is None or not math.isfinite(mean + low + high):
        return None
    return None if equal_seeds(low, high) or says_little(metric, low, high) else max(mean - low, high - mean)


def _numbers(
    metric: str, rows: Sequence[Row], field: str, ends: str, mark: Callable[[Row], str], *, best: bool | None = None
) -> list[str]:
    """Return the cells of a field whose interval is in `ends`_low and `ends`_high; `best` as in `number_cells`."""
    prefix = f"{ends}_" if ends else ""
    low, high = f"{prefix}low", f"{prefix}high"
    numbers = [
        Number(value=row[field], half=_half(metric, row[field], row[low], row[high]), mark=mark(row)) for row in rows
    ]
    return number_cells(metric, numbers, best=best, signed=field == "difference")


def _mark(row: Row) -> str:
    """Return the marks of what is established: a difference from the baseline, and that it is within the margin."""
    p, claims = row["p_adjusted"], {*(row["claims"] or "").split(", ")}
    is_alike = bool(claims & {NON_INFERIOR, EQUIVALENT})
    is_different = p is not None and p < ERROR
    return f"{DIFFERS if is_different else ''}{ALIKE if is_alike else ''}"


def _open(row: Row) -> str:
    return ALIKE if row["verdict"] == "not distinguished" else ""
