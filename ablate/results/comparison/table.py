"""The cells of a designed comparison as text for the page and the terminal, and the terminal's table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.core.objectives import is_evaluated
from ablate.results.comparison.comparison import CONSTANTS
from ablate.results.rendering.numbers import (
    DASH,
    capital,
    compact,
    count,
    format_signed,
    interval_text,
    printable,
    quantity,
    reach,
    spell_metric,
)
from ablate.results.statistics.samples import SAMPLES_TOO
from ablate.study import Study

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EXACT = 100_000_000  # parameter counts at or above this are rounded in a terminal
WIDEST_VARIANT, WIDEST_BASELINE = 30, 15  # characters in a terminal
FOLDED_VARIANTS = (26, 22, 19)  # if that keeps the parameters in the table


@dataclass(kw_only=True)
class Footnotes:
    """The footnotes of cells: each text occurs once, numbered from 1."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """Return the superscript number of `text`, or an empty text for no text."""
        if not text:
            return ""
        text = printable(text)
        if text not in self.texts:
            self.texts.append(text)
        return str(self.texts.index(text) + 1).translate(SUPERSCRIPTS)

    def lines(self) -> list[str]:
        """Return the footnotes, each after its number."""
        return [f"{str(i).translate(SUPERSCRIPTS)} {text}" for i, text in enumerate(self.texts, 1)]


@dataclass(frozen=True, kw_only=True)
class ColumnBlock:
    """The cells of one metric: rows by column (see `_shown`), footnotes, and which parts occur at all.

    `planned` holds the distinct numbers of configurations that cells are averaged over.
    """

    metric: str
    rows: Mapping[str, list[dict[str, str]]]
    notes: list[str]
    published: bool
    incomplete: bool
    paired: bool
    planned: tuple[int, ...]
    seeds: tuple[int, ...]
    samples: tuple[int, ...]


def block(study: Study, table: pl.DataFrame, metric: str) -> ColumnBlock:
    """Return the cells of one metric; exclude variants that neither run in a column nor are published."""
    own = table.filter(pl.col("metric") == metric)
    there = own.filter((pl.col("planned") > 0) | pl.col("published").is_not_null())
    notes = Footnotes()
    rows: dict[str, list[dict[str, str]]] = {}
    for row in there.iter_rows(named=True):
        rows.setdefault(row["column"], []).append(_shown(row, notes))
    return ColumnBlock(
        metric=metric,
        rows=rows,
        notes=notes.lines(),
        published=bool(there["published"].is_not_null().any()),
        incomplete=bool((there["configurations"] < there["planned"]).any()),
        paired=bool((there["variant"] != study.compared.baseline).any()) and metric not in CONSTANTS,
        planned=tuple(there.filter(pl.col("planned") > 0)["planned"].unique().sort().to_list()),
        seeds=tuple(there.filter(pl.col("n") > 0)["n"].unique().sort().to_list()),
        samples=tuple(there.filter(over=SAMPLES_TOO)["samples"].unique().sort().to_list()),
    )


def _shown(row: Mapping[str, Any], notes: Footnotes) -> dict[str, str]:
    """Return a cell as texts; a missing value is a dash. `ours`, `against` and `others` are followed by ±."""
    metric, star = row["metric"], "*" if row["scaled"] else ""

    def own(text: str, extra: str = "") -> str:
        """Return `text`, marked with a star if the study is scaled."""
        return text if text == DASH else f"{text}{extra}{star}"

    diverged = row["ours"] is not None and math.isnan(row["ours"])
    difference, n, done, planned = row["baseline_difference"], row["n"], row["configurations"], row["planned"]
    paired, wider = ((row[f"baseline_{name}low"], row[f"baseline_{name}high"]) for name in ("", "samples_"))
    half, others = reach(metric, row["ours"], row["low"], row["high"], n), reach(metric, difference, *wider, n)
    published = quantity(metric, row["published"]) + notes.mark(row["note"])
    mean, remark = "diverged" if diverged else own(quantity(metric, row["ours"])), notes.mark(row["remark"])
    return {
        "variant": printable(row["variant"]),
        "params": own(count(row["params"])),
        "published": published,
        "mean": mean + remark,
        "ours": (mean if diverged else own(quantity(metric, row["ours"]), half)) + remark,
        "interval": own(interval_text(metric, row["low"], row["high"], n or 0)),
        "n": str(row["n"]) if row["n"] else DASH,
        "difference": own(format_signed(metric, row["difference"])),
        "mean_against": own(format_signed(metric, difference)),
        "against": own(format_signed(metric, difference), reach(metric, difference, *paired, n)),
        "against_interval": own(interval_text(metric, *paired, n or 0).replace("-", "−")),
        "others": own(others.strip() or DASH),
        "against_others": own(interval_text(metric, *wider, n or 0).replace("-", "−")),
        "correlation": DASH if row["correlation"] is None else own(f"{row['correlation']:.2f}".replace("-", "−")),
        "complete": str(planned) if done >= planned else f"{done} of {planned}",
    }


def scale_text(study: Study) -> str:
    """Return how the study is scaled, or an empty text."""
    if study.scale == 1:
        return ""
    return (
        f"scaled {study.scale:g}: epochs, data (validation too) and the configurations averaged over are cut to "
        f"{100 * study.scale:g}% (at least one of each); every number is marked *, none is one of the full study"
    )


def missing_text(study: Study) -> str:
    """Return which data sets of the file are not part of this study, or an empty text."""
    missing = [printable(label) for label in study.datasets if label not in study.labels]
    if not missing:
        return ""
    return f"{len(study.labels)} of {len(study.datasets)} data sets of the file; not run: {', '.join(missing)}"


def metric_text(study: Study, found: ColumnBlock, *, sign: str = "") -> str:
    """Return one sentence on what the numbers of a metric are; `sign` is the notation of intervals."""
    name, averaged = capital(spell_metric(found.metric)), _average(found)
    if found.metric in CONSTANTS:
        return f"{name}, mean over {averaged}." if averaged else f"{name}."
    text = f"{name} after the last {study.unit}, mean over {f'{averaged} and seeds' if averaged else 'seeds'}"
    if found.seeds and found.seeds[-1] > 1:
        seeds = str(found.seeds[0]) if len(found.seeds) == 1 else f"{found.seeds[0]} to {found.seeds[-1]}"
        baseline = printable(study.compared.baseline)
        paired = f", paired by seed against {baseline}" if found.paired else ""
        if not found.samples:
            text += f"; intervals{sign} are 95% Student t over {seeds} seeds{paired}"
            text += ", on these samples only" if is_evaluated(found.metric) else ""
        else:
            text += f"; intervals{sign} of means are 95%, for other seeds and other samples of the same kind"
            text += f"; those of differences are Student t over {seeds} seeds{paired}, on these {_counts(found)} "
            text += "samples only, and beside them for other samples too"
    elif found.seeds:
        text += "; one seed has no interval"
    elif found.metric.startswith("test_"):
        return f"{name}: the test split is opened once the last trial has ended."
    return f"{text}."


def _counts(found: ColumnBlock) -> str:
    """Return the numbers of test samples that the cells are read on: `359`, `359 to 10,000`."""
    return " to ".join(f"{count:,}" for count in sorted({found.samples[0], found.samples[-1]}))


def _average(found: ColumnBlock) -> str:
    """Return `8 configurations`, without the number if cells differ, and an empty text if each has just one."""
    if len(found.planned) != 1 or found.incomplete:
        return "configurations"
    return f"{found.planned[0]} configurations" if found.planned[0] > 1 else ""


def cell_lines(study: Study, table: pl.DataFrame) -> RenderableType:
    """Return the cells of the first metric as a table for a terminal, at least 80 columns wide, and what they are."""
    found = block(study, table, study.compared.metrics[0])
    source = study.compared.source
    below = [*found.notes, *([f"Published figures: {printable(source)}"] if source and found.published else [])]
    fitted = _Fitted(found=found, baseline=printable(study.compared.baseline))
    return Group(Text(metric_text(study, found, sign=" (±)")), Text(), fitted, *map(Text, ["", *below]))


@dataclass(frozen=True, kw_only=True)
class _Fitted:
    """A table of one metric that drops what does not fit into a narrow terminal, and says so."""

    found: ColumnBlock
    baseline: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        dropped: list[str] = []
        for dropped, widest in (
            ([], WIDEST_VARIANT),
            (["difference"], WIDEST_VARIANT),
            *((["difference"], folded) for folded in FOLDED_VARIANTS),
            (["difference", "params"], WIDEST_VARIANT),
            (["difference", "params", "others"], WIDEST_VARIANT),
        ):
            table = self._table(dropped, widest)
            if Measurement.get(console, options.update(max_width=1000), table).maximum <= options.max_width:
                break
        yield table
        if dropped:
            words = {
                "difference": "ours − published",
                "params": "parameters",
                "others": "differences for other samples",
            }
            yield Text(f"\nLeft out at this width: {', '.join(words[name] for name in dropped)}.")

    def _table(self, dropped: list[str], widest: int) -> Table:
        found = self.found
        against = self.baseline if len(self.baseline) <= WIDEST_BASELINE else "baseline"
        there = {
            "params": ("params", True),
            "published": ("published", found.published),
            "ours": ("ours", True),
            "difference": ("ours −\npublished", found.published),
            "against": (f"against\n{against}", found.paired),
            "others": ("for other\nsamples", found.paired and bool(found.samples)),
            "complete": ("complete", found.incomplete),
        }
        headings = {name: text for name, (text, occurs) in there.items() if occurs and name not in dropped}
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        table.add_column("variant", overflow="fold", max_width=widest, vertical="bottom")
        for text in headings.values():
            table.add_column(Text(text), justify="right", no_wrap=True, vertical="bottom")
        for index, (column, rows) in enumerate(found.rows.items()):
            if index:
                table.add_row()
            table.add_row(Text(printable(column), style="bold"))
            for row in rows:
                digits = row["params"].rstrip("*").replace(",", "")
                if digits.isdigit() and int(digits) >= EXACT:
                    row = row | {"params": compact(int(digits)) + "*" * row["params"].endswith("*")}
                table.add_row(Padding(Text(row["variant"]), (0, 0, 0, 2)), *(Text(row[name]) for name in headings))
        return table
