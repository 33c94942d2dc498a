"""The answer and the front of every data set for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ablate.results.front.cautions import cautions
from ablate.results.front.confirmation import confirmation_text, on_front_text, protocol_text
from ablate.results.front.curve_words import fit_lines
from ablate.results.front.findings import Findings
from ablate.results.front.fitted import search_fits
from ablate.results.front.table import front_grid
from ablate.results.front.tables import front_table, note_text
from ablate.results.rendering.numbers import capital, printable
from ablate.results.trials.results import Results


def front_lines(results: Results) -> RenderableType:
    """Return per data set its answer, its warnings and its front; intervals need the reports table."""
    datasets = front_table(results)["dataset"].unique(maintain_order=True).to_list()
    known = [*datasets, *(label for label in results.study.labels if label not in datasets)]
    return Group(*_parts(results, known), *fit_lines(search_fits(results).values()))


def _parts(results: Results, datasets: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the protocol if validation is the test split, then per data set its answer, warnings and table."""
    study, several = results.study, len(results.study.labels) > 1
    if study.protocol == "paper":
        yield Text(f"{protocol_text(study)}\n")
    for found in (Findings(results, dataset) for dataset in datasets):
        on = f"{found.dataset}: " if several else ""
        yield Text(printable(f"{on}{found.answer_text}"))
        if not found.front.height:
            continue
        for warning in cautions(found):
            yield Text(printable(f"Warning ({warning.code}): {warning.sentence}"))
        words = confirmation_text(results, found.dataset)
        others = on_front_text(found.pooled.trials, found.dataset, found.front.height) if found.tested else ""
        facts = [capital(f"{words}{others}"), note_text(study, found.rows)]
        yield Text("")
        yield Text(printable(f"{'. '.join(filter(None, facts))}."))
        yield front_grid(found)
        yield Text("")
