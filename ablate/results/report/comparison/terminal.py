"""A comparison in a terminal: what it is, its verdicts, what limits them, its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ablate.results.analysis.comparison import cells
from ablate.results.analysis.comparison_warnings import comparison_warnings
from ablate.results.analysis.looks import compared_looks
from ablate.results.analysis.next_step import next_step
from ablate.results.analysis.verdicts import verdicts
from ablate.results.report.comparison.table import cell_lines, missing_text, require_comparison, scale_text
from ablate.results.report.comparison.verdicts import answer_lines, verdict_lines, warning_lines
from ablate.results.report.confirmation import protocol_text
from ablate.study import Study


def comparison_lines(
    study: Study, trials: pl.DataFrame, reports: pl.DataFrame, notes: Sequence[Any] = ()
) -> RenderableType:
    """Return the first metric of a comparison for a terminal, at least 80 columns wide."""
    compare = require_comparison(study)
    protocol = [protocol_text(study)] if study.protocol == "paper" else []
    above = map(Text, [*protocol, *filter(None, [scale_text(study), missing_text(study)])])
    warnings = comparison_warnings(study, trials, reports, notes)
    below = cell_lines(study, cells(study, trials, reports))
    if not compare.margin:  # verdicts take a second to compute, and there are none
        empty = pl.DataFrame(schema={"metric": pl.String()})
        return Group(
            *above, *map(Text, answer_lines(study, empty, compare.metrics[0])), *warning_lines(warnings), below
        )
    judged = verdicts(study, trials, reports, look=len(compared_looks(notes)))
    step = next_step(study, judged.filter(pl.col("metric") == compare.metrics[0]), trials)
    found = verdict_lines(study, judged, compare.metrics[0], warnings, step)
    return Group(*above, found, Text(), below)
