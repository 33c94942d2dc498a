"""Verdicts in words and as a table, for the page and the terminal of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.base.plain_text import counted
from ablate.core.objectives import given_for, is_evaluated, is_share
from ablate.results.comparison.data_sets import sampled_columns
from ablate.results.comparison.next_step import NextStep
from ablate.results.comparison.table import Footnotes
from ablate.results.comparison.verdicts import CLAIMS, HARMFUL, INCONCLUSIVE, SUPERIOR
from ablate.results.comparison.wording import MOST_SENTENCES, change_text, size_text, span_text, spell_variant
from ablate.results.rendering.numbers import (
    DASH,
    capital,
    equal_seeds,
    format_signed,
    interval_text,
    printable,
    reach,
    spell_metric,
    spell_seconds,
    unit_text,
)
from ablate.results.statistics.intervals import clopper_pearson
from ablate.results.statistics.looks import share_of
from ablate.results.trials.study_warnings import StudyWarning
from ablate.study import Study
from ablate.study.tuning_seeds import shared_tuning_text

Row = Mapping[str, Any]
Answers = list[tuple[str, list[tuple[str, str]]]]
AS_A_SAMPLE = (
    ' Rows "as a sample" are of the mean difference over all data sets from which these were drawn, by a t test over '
    "data sets. They say nothing of a single one, and do not hold if data sets were chosen by their results."
)
WIDEST_VARIANT = 24  # characters in a terminal


@dataclass(frozen=True, kw_only=True)
class VerdictBlock:
    """The verdicts of one metric as text: what all rows share, headings, rows by column, footnotes."""

    text: str
    headings: tuple[str, ...]
    rows: Mapping[str, list[tuple[str, ...]]]
    notes: list[str]


def verdict_lines(
    study: Study, table: pl.DataFrame, metric: str, warnings: Sequence[StudyWarning], step: NextStep | None
) -> RenderableType:
    """Return the verdicts of a metric for a terminal: sentences, the next step, warnings, the table."""
    found = verdict_block(study, table, metric, narrow=True)
    return Group(
        *map(Text, answer_lines(study, table, metric)), *([Text(step_text(study, metric, step))] if step else []),
        *warning_lines(warnings), Text(found.text), Text(), _table(found),
        *map(Text, found.notes),
    )  # fmt: skip


def answer_lines(study: Study, table: pl.DataFrame, metric: str) -> Iterator[str]:
    """Yield the verdicts of a metric as lines for a terminal, or how to get them."""
    if given_for(study.compared.margin, metric) is None:
        yield hint_text(metric)
        return
    columns = table["column"].n_unique()
    for column, sentences in verdict_answers(study, table):
        if columns > 1:
            yield f"{column}:"
        for name, sentence in sentences:
            yield f"{'  ' * (columns > 1)}{name} {sentence}"


def warning_lines(warnings: Sequence[StudyWarning]) -> Iterator[Text]:
    """Yield warnings as lines for a terminal."""
    for each in warnings:
        yield Text(f"Warning ({each.code}): {printable(each.text)}", style="yellow")


def hint_text(metric: str) -> str:
    """Return how to get verdicts for a metric whose file gives no margin."""
    example = "0.005" if is_share(metric) else "NUMBER"
    return (
        "No verdicts: the study file does not say which difference matters. "
        f"Write compare.margin: {{{metric}: {example}}} into it before the runs."
    )


def step_text(study: Study, metric: str, step: NextStep) -> str:
    """Return what decides the inconclusive rows of a metric: more seeds, a wider margin, or more data sets."""
    sampled = ""
    if step.over_data_sets:
        verdicts = f"{step.over_data_sets} verdict{'s' * (step.over_data_sets != 1)}"
        sampled = f"{verdicts} over data sets: inconclusive; further data sets decide this, not further seeds."
    return " ".join(filter(None, (_over_seeds(study, metric, step) if step.undecided else "", sampled)))


def _over_seeds(study: Study, metric: str, step: NextStep) -> str:
    text = f"{step.undecided} of {step.rows} verdicts {'over seeds ' * bool(step.over_data_sets)}"
    text += f"{'is' if step.undecided == 1 else 'are'} inconclusive"
    if step.collapsed:
        which = "one of them has" if step.collapsed == 1 else f"{step.collapsed} of them have"
        text += f"; {which} collapsed seeds, and more seeds do not help there"
    text += ". "
    if step.collapsed == step.undecided:
        return f"{text}Look at these seeds: a training that fails on some of them is a property of the network."
    if step.hours is None:
        text += "No number of seeds up to 1,000 finds a variant without a difference non-inferior. "
    else:
        time = spell_seconds(3600 * step.hours)
        text += (
            f"To find variants without a difference non-inferior with 80% power, raise replicates from "
            f"{study.replicates} to {step.seeds} and add `--extend` to `ablate compare`: {time} of training, one "
            f"trial after another. It is another look at the results, with {step.share:.1%} of the 5% error. "
        )
    if step.margin is None:
        return text.rstrip()
    return (
        f"{text}At a margin of {unit_text(metric, step.margin)} they would be non-inferior now; but a margin is chosen "
        "before the results, and a later one is marked as such."
    )


def verdict_answers(study: Study, table: pl.DataFrame, cells: pl.DataFrame | None = None) -> Answers:
    """Return by column each variant, as `kv:`, and its verdict in words; `cells` adds its size.

    With more than MOST_SENTENCES variants, one line for each verdict names the variants that have it.
    """
    found: Answers = []
    for part in table.partition_by("column", maintain_order=True):
        rows = part.rows(named=True)
        if table.height > MOST_SENTENCES:
            sentences = list(_by_verdict(rows))
        else:
            sentences = [
                (f"{spell_variant(study, row['variant'])}:", verdict_sentence(row, rows) + _sized(study, row, cells))
                for row in rows
            ]
        found.append((printable(rows[0]["column"]), sentences))
    return found


def verdict_sentence(row: Row, rows: Sequence[Row] = ()) -> str:
    """Return `non-inferior at a margin of 0.5 points: loses 0.12 points (95% interval 0.05 to 0.2, 10 seeds)`.

    *Superior* and *harmful* are differences from zero, so they name a margin only where the remark does. `rows` are
    those of the row's metric and column, beside which a placebo is described.
    """
    if _is_noise(row):
        return _noise_text(row, rows)
    if row["verdict"] is None:
        return "not compared yet: no configuration is complete in both."
    if row["difference"] is None or math.isnan(row["difference"]) or (row["over"] != "seeds" and row["low"] is None):
        return f"{row['verdict']}: {row['remark']}."
    metric, star = row["metric"], "*" if row["scaled"] else ""
    margin, remark = f"margin of {unit_text(metric, row['margin'])}", row["remark"]
    text = f"{row['verdict']} at a {margin}: "
    if row["verdict"] in (SUPERIOR, HARMFUL):
        text, remark = f"{row['verdict']}, ", remark.replace("the margin", f"the {margin}")
    text += f"{change_text(metric, row['difference'], star)} ({_span(row, star)})"
    if row["verdict"] == INCONCLUSIVE and row["detectable"] is not None:
        text += f"; the smallest detectable effect is {unit_text(metric, row['detectable'])}"
        if row["seeds_needed"] is not None and row["seeds_needed"] > row["n"]:
            text += f", and {row['seeds_needed']} {row['over']} find an equal variant non-inferior with 80% power"
    return f"{text}{'; ' * bool(remark)}{remark}."


def verdict_block(study: Study, table: pl.DataFrame, metric: str, *, narrow: bool = False) -> VerdictBlock:
    """Return the verdicts of one metric as a table's text; a `narrow` one fits into 80 characters."""
    own = table.filter(pl.col("metric") == metric)
    margin, notes = given_for(study.compared.margin, metric), Footnotes()
    rows: dict[str, list[tuple[str, ...]]] = {}
    headings: list[str] = []
    for row in own.iter_rows(named=True):
        cells = _cells(row, notes, judged=margin is not None, narrow=narrow)
        headings = list(cells)
        rows.setdefault(printable(row["column"]), []).append(tuple(cells.values()))
    return VerdictBlock(
        text=_shared(study, own, metric, margin), headings=tuple(headings), rows=rows, notes=notes.lines()
    )


def _cells(row: Row, notes: Footnotes, *, judged: bool, narrow: bool) -> dict[str, str]:
    """Return the texts of a row by heading."""
    metric, star, n = row["metric"], "*" if row["scaled"] else "", row["n"]
    mean = math.nan if row["difference"] is None else row["difference"]
    span = interval_text(metric, row["low"], row["high"], n).replace("-", "−").replace("seeds", row["over"])
    difference = format_signed(metric, row["difference"])
    half = "" if math.isnan(mean) else reach(metric, mean, row["low"], row["high"], n).replace("seeds", row["over"])
    verdict = {"verdict": (row["verdict"] or DASH) + notes.mark(row["remark"])} if judged else {}
    apart = (
        {"difference": f"{difference}{half}{star * (difference != DASH)}"}
        if narrow
        else {
            "difference": difference + star * (difference != DASH),
            "95% interval": span + star * (span != DASH),
        }
    )
    detectable = DASH if row["detectable"] is None else unit_text(metric, row["detectable"]).partition(" ")[0]
    return {
        "variant": printable(row["variant"]),
        **verdict,
        **apart,
        "adjusted p": p_text(row["p_adjusted"]),
        "wins": DASH if row["wins"] is None else f"{100 * row['wins']:.0f}%",
        "detects" if narrow else "smallest detectable": detectable,
        **({} if narrow else {"seeds": f"{n}{' data sets' * (row['over'] != 'seeds')}" if n else DASH}),
        **({} if judged or not row["remark"] else {"variant": printable(row["variant"]) + notes.mark(row["remark"])}),
    }


def p_text(p: float | None) -> str:
    """Return a p-value in three digits, or `<.001`."""
    return DASH if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def _shared(study: Study, table: pl.DataFrame, metric: str, margin: float | None) -> str:
    """Return what all rows of a metric share."""
    name = spell_metric(metric)
    text = f"{capital(name)}: variant − {printable(study.compared.baseline)}, paired by seed"
    text += ", in points" if is_share(metric) else ""
    seeds = table.filter(pl.col("n") > 0, pl.col("over") == "seeds")["n"].unique().sort().to_list()
    if seeds:
        text += f", {counted(seeds[0], 'seed')}" if len(seeds) == 1 else f", {seeds[0]} to {seeds[-1]} seeds"
    text += "; 95% t intervals"
    tests = max(table["family"].drop_nulls().to_list(), default=0)  # a placebo is of no family
    if tests:
        look = table["look"][0]
        text += f"; superior and harmful by p adjusted for {counted(tests, 'test')} (Holm)"
        text += f" and for look {look} at the results, which has {share_of(look):.1%} of the 5% error"
    if margin is not None and tests:
        each = f"by Holm over {tests} too" if study.compared.familywise else "each row by itself"
        text += f"; margin {unit_text(metric, margin)}: non-inferior and equivalent {each}"
    if margin is not None and seeds:
        chance = clopper_pearson(0, seeds[0])[1]
        text += (
            f". A row of {counted(seeds[0], 'seed')} without a collapse may still collapse in up to {chance:.0%} of "
        )
        text += "seeds"
    whole = study.tune is not None and shared_tuning_text(study) is None
    text += "." + " Each verdict is of the part and its tuning." * whole
    return text + AS_A_SAMPLE * bool(sampled_columns(study))


def _span(row: Row, star: str) -> str:
    if row["low"] is None:
        return "one seed, no interval"
    text = f"95% interval {span_text(row['metric'], row['low'], row['high'], star)}, {row['n']} {row['over']}"
    if equal_seeds(row["low"], row["high"]):
        text = f"the same in each of {row['n']} {row['over']}"
    if row["over"] != "seeds":
        return text
    if row["samples_low"] is None:
        return f"{text}, on these samples only" if is_evaluated(row["metric"]) else text
    return f"{text}; for other samples too {span_text(row['metric'], row['samples_low'], row['samples_high'], star)}"


def _sized(study: Study, row: Row, cells: pl.DataFrame | None) -> str:
    """Return the sentence on a variant's size, or an empty text if a size is not known."""
    if cells is None or row["over"] != "seeds":
        return ""
    baseline = study.compared.baseline
    own = cells.filter(pl.col("metric") == row["metric"], pl.col("column") == row["column"])
    by_name = {each["variant"]: each for each in own.rows(named=True)}
    if not by_name[row["variant"]]["params"] or not by_name[baseline]["params"]:
        return ""
    whole = "the complete network" if study.parts else printable(baseline)
    return f" It {size_text(by_name[row['variant']], by_name[baseline]).format(name=whole)}."


def _by_verdict(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for verdict in (*CLAIMS, INCONCLUSIVE, None):
        names = [printable(row["variant"]) for row in rows if row["verdict"] == verdict and not _is_noise(row)]
        if names:
            yield f"{(verdict or 'not compared yet').capitalize()}:", f"{', '.join(names)}."
    for row in filter(_is_noise, rows):
        yield f"{printable(row['variant']).capitalize()}:", _noise_text(row, rows)


def _is_noise(row: Row) -> bool:
    """Return whether a row has a difference and, as a placebo, no verdict although there is a margin."""
    return row["verdict"] is None and row["margin"] is not None and row["family"] is None and bool(row["n"])


def _noise_text(row: Row, rows: Sequence[Row]) -> str:
    """Return a placebo's difference, and the spread that differences have without pairing and with it."""
    star = "*" if row["scaled"] else ""
    change = change_text(row["metric"], row["difference"], star)
    text = f"the baseline on other seeds {change} ({_span(row, star)}), without pairing"
    paired = paired_sd(rows)
    if row["sd"] is None or paired is None:
        return f"{text}."
    own, others = (unit_text(row["metric"], sd) for sd in (row["sd"], paired))
    return f"{text}: its differences vary by {own} between {row['over']}, those of the paired rows by {others} (sd)."


def paired_sd(rows: Sequence[Row]) -> float | None:
    """Return the standard deviation over seeds of paired differences, pooled over the rows but a placebo."""
    found = [row["sd"] ** 2 for row in rows if row["family"] is not None and row["sd"] is not None]
    return math.sqrt(math.fsum(found) / len(found)) if found else None


def _table(found: VerdictBlock) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, heading in enumerate(found.headings):
        table.add_column(
            heading, justify="left" if heading in ("variant", "verdict") else "right", no_wrap=index > 0,
            overflow="fold", max_width=WIDEST_VARIANT if index == 0 else None,
        )  # fmt: skip
    for index, (column, rows) in enumerate(found.rows.items()):
        if index:
            table.add_row()
        table.add_row(Text(column, style="bold"))
        for name, *cells in rows:
            table.add_row(Padding(Text(name), (0, 0, 0, 2)), *map(Text, cells))
    return table
