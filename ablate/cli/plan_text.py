"""A plan as a reader sees it in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ablate.base.plain_text import counted, settings_text, short_name
from ablate.cli.power_text import power_lines
from ablate.core.objectives import SIZE_METRICS
from ablate.core.registry import TRAINABLES
from ablate.driver.plan import Plan, limit_rows
from ablate.results.comparison.design import design_lines
from ablate.results.rendering.numbers import quantity, spell_seconds
from ablate.study import MOST_TRIALS, Study
from ablate.study.keys import OWN_DATA

ROWS_SHOWN = 24


def plan_lines(plan: Plan) -> RenderableType:
    """Return the plan as a table of architectures, followed by trials and hours per data set."""
    shown = limit_rows(plan, ROWS_SHOWN)
    table = Table(box=None, pad_edge=False)
    named = plan.study.labels != (OWN_DATA,)
    for name in ("variant", *["data set"] * named):
        table.add_column(name, overflow="fold")
    written = shown.table()
    own = sorted({name for row in plan.rows for name in row.size} - {*SIZE_METRICS})
    columns = [name for name in ("depth", "heads", "params", "flops", *own, "q") if name in written.columns]
    for name in columns:
        table.add_column(name.upper() if name == "q" else name, justify="right", no_wrap=True)
    for cells in written.iter_rows(named=True):
        label = [cells["dataset"]] * named
        table.add_row(cells["variant"], *label, *(_cell(name, cells[name]) for name in columns))
    listed = [*_lines(plan, shown), *design_lines(plan.study)]
    has_rows = table.row_count > 1 or len(table.columns) > 1
    return Group(*([table, Text()] if has_rows else ()), *map(Text, listed))


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in ("depth", "heads"):
        return str(value)
    return f"{value:.2f}" if name == "q" else quantity(name, value)


def _lines(plan: Plan, shown: Plan) -> list[str]:
    lines = []
    if plan.study.scale != 1:
        lines += [f"Scaled {plan.study.scale:g}: trials, epochs and time are of {plan.study.name}; Q counts all data."]
    for dataset, count in plan.trials.items():
        total = plan.architectures[dataset]
        of_set = sum(row.dataset == dataset for row in shown.rows)
        some = f", {of_set} of them shown" if total is None or total > of_set else ""
        many = counted(count, "trial") if count < MOST_TRIALS else "as many trials as the budget allows,"
        text = plan.study.said_of(dataset, f"{many} of up to {counted(_epochs(plan, dataset), plan.study.unit)}")
        if total is not None and plan.study.scale != 1 and plan.study.compare is not None:
            text += f", of {counted(total, 'architecture')} in full."
        else:
            text += f" over {counted(total, 'architecture')}{some}." if total is not None else "."
        if plan.seconds_per_trial is not None:
            seconds = spell_seconds(plan.seconds_per_trial[dataset])
            own = plan.study.trainable not in TRAINABLES.names()
            by = f"roughly {seconds} here, by its first {plan.study.unit}" if own else f"about {seconds} here"
            text += f" A full trial takes {by}."
        lines.append(text)
        lines += [*_tuning_lines(plan, dataset), *_own_lines(plan, dataset)]
    hours = plan.hours()
    if hours is not None:
        what = "All search trials at full length" if plan.study.compare is None else "All trials"
        lines.append(f"{what}, one after another on this machine: {spell_seconds(hours * 3600)};")
        shorter = "early stopping shortens it, and so does" if plan.study.compare is None else "it is shorter by"
        lines.append(f"{shorter} every trial that runs at the same time.")
    lines += _budget_lines(plan.study, hours)
    if plan.confirmations:
        what = "each configuration of a front" if len(plan.study.objectives) > 1 else "the best"
        lines.append(f"Then {what} is trained once more on {plan.confirmations} fresh seeds.")
    return [*lines, *power_lines(plan), *(f"Note: {line}" for line in plan.cautions)]


def _budget_lines(study: Study, hours: float | None) -> list[str]:
    """Return what ends the search, and what its trials cost; `hours` are of all trials."""
    lines, budget = [], study.budget
    if "trials" not in budget.model_fields_set:
        lines.append(f"The budget is the default: {budget.trials} trials. To change it: --trials 40, or --time 15m.")
    if budget.wall_clock is not None:
        lines.append(f"No further trial starts after {spell_seconds(budget.wall_clock)}.")
    if (most := budget.most_hours) is not None:
        money = "" if budget.price is None else f", {budget.price * most:.2f} at {budget.price:g} each"
        lines.append(f"No further trial starts once the search has used {most:g} GPU hours{money}.")
    if hours is not None and budget.price is not None:
        lines.append(f"At full length they cost {budget.price * hours:.2f} on GPUs as fast as this machine.")
    return lines


def _own_lines(plan: Plan, dataset: str) -> list[str]:
    """Return that trial 0 has the user's own settings, in one line, or nothing."""
    own = plan.your_settings().get(dataset)
    if own is None:
        return []
    rest = [short_name(name) for name in plan.study.space_for(dataset).names() if name not in own]
    more = f"; the sampler chooses {', '.join(rest)}" if rest else ""
    return [f"  Trial 0 is your own settings: {settings_text(own, own)}{more}."]


def _tuning_lines(plan: Plan, dataset: str) -> list[str]:
    """Return what the tuning of a data set's rows costs, in one line, or nothing."""
    if plan.study.tune is None:
        return []
    count, rows, seeds = plan.tuning[dataset], plan.trials[dataset], plan.seeds_of_tuning
    text = (
        f"  First {counted(count, 'tuning trial')} on {counted(seeds, 'seed')}: the same {count // rows} for every row."
        f" {counted(count * seeds, 'run')} of tuning, then {counted(rows * plan.study.replicates, 'run')} of the rows,"
        " in a trial for each value that wins."
    )
    if plan.seconds_per_tuning_trial is not None:
        text += f" One takes about {spell_seconds(plan.seconds_per_tuning_trial[dataset])}."
    return [text]


def _epochs(plan: Plan, dataset: str) -> int:
    return max(row.settings.length for row in plan.rows if row.dataset == dataset)
