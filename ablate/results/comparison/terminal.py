"""A comparison in a terminal: what it is, its verdicts, what limits them, its cells."""

from __future__ import annotations

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ablate.results.comparison.comparison import cells
from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.next_step import next_step
from ablate.results.comparison.table import cell_lines, missing_text, scale_text
from ablate.results.comparison.verdict_table import hint_text, verdict_lines, warning_lines
from ablate.results.comparison.verdicts import verdicts
from ablate.results.front.confirmation import protocol_text
from ablate.results.trials.results import Results


def comparison_lines(results: Results) -> RenderableType:
    """Return the first metric of a comparison for a terminal, at least 80 columns wide."""
    study, warnings, metric = results.study, comparison_warnings(results), results.study.compared.metrics[0]
    protocol = [protocol_text(study)] if study.protocol == "paper" else []
    above = map(Text, [*protocol, *filter(None, [scale_text(study), missing_text(study)])])
    below = cell_lines(study, cells(results))
    if not study.compared.margin:  # verdicts take a second to compute, and there are none
        return Group(*above, Text(hint_text(metric)), *warning_lines(warnings), below)
    judged = verdicts(results).filter(pl.col("metric") == metric)
    return Group(*above, verdict_lines(study, judged, metric, warnings, next_step(results, judged)), Text(), below)
