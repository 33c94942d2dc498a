"""The sentences of the page: status, fit, hypervolume, and how the numbers were made."""

from __future__ import annotations

from collections import Counter

import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import constraint_text, is_share
from ablate.core.trial import CONFIRM_SEED_BASE, PLACEBO_SEED_BASE
from ablate.results.fits.fits import EQUATIONS, MAX_EXTRAPOLATION, MIN_DECADES, MIN_SIZES
from ablate.results.fits.misfit import SCATTER
from ablate.results.front.budget import ended_early_text, gpu_hours, hours_content, hours_text
from ablate.results.front.confirmation import confirmation_text, open_text, opened_text, protocol_text
from ablate.results.front.findings import Findings, counts_text, findings
from ablate.results.front.front import confirmed
from ablate.results.front.hypervolume import hypervolume
from ablate.results.front.summary import size_metric
from ablate.results.front.tables import quality_name
from ablate.results.rendering.numbers import compact, spell_metric
from ablate.results.statistics.intervals import NEAR_ONE
from ablate.results.trials.results import Results
from ablate.study import PLACEBO, Study


def status_lines(results: Results) -> list[tuple[str, str]]:
    """Return the page's first lines: protocol, trials by state, seeds, confirmation."""
    study = results.study
    begun = Counter(results.trials.filter(stage="search")["dataset"])
    lines = [("Protocol", protocol_text(study)), ("Trials", counts_text(results.trials))]
    lines.append(("Seeds", seeds_text(study, results.reports)))
    for dataset, found in findings(results).items():
        words = confirmation_text(results, dataset) if found.front.height else "no front yet: no trial is complete"
        early = ended_early_text(results, dataset, begun[dataset])
        lines.append((f"Status of {dataset}", words + opened_text(results, dataset) + (early and f"; {early}")))
    if (spent := hours_content(study, gpu_hours(results))) is not None:
        lines.append(("Spent by the search", hours_text(spent)))
    return [*lines, ("Hypervolume", hypervolume_rule(study))]


def hypervolume_rule(study: Study) -> str:
    """Return in short how the hypervolume is computed; the section of each data set has the numbers."""
    if len(study.objectives) == 1:
        return "none: one objective is declared"
    logs = ", ".join(o.metric for o in study.objectives if o.log)
    derived = ", ".join(o.metric for o in study.objectives if o.reference is None)
    axes = f"log10 of {logs}; " if logs else ""
    if not derived:
        return f"{axes}reference point as the study file declares"
    return f"{axes}reference point of {derived} derived from the worst complete trial (not declared in the study file)"


def seeds_text(study: Study, reports: pl.DataFrame) -> str:
    """Return the study's seed and the replicate seeds seen at each stage."""
    parts = [f"study seed {study.seed}"]
    for stage, word in (
        ("tune", "tuning"),
        ("search", "every trial" if study.compare else "search replicates"),
        ("confirm", "confirmation replicates"),
    ):
        if study.compare is not None and stage == "confirm":
            continue  # a comparison's confirmation evaluates existing networks, on their own seeds
        seeds = reports.filter(pl.col("stage") == stage)["seed"].unique().sort().to_list() if reports.height else []
        groups = {word: [seed for seed in seeds if not _is_of_placebo(seed)]}
        groups[f"tuning of the {PLACEBO}" if stage == "tune" else f"the {PLACEBO}"] = list(
            filter(_is_of_placebo, seeds)
        )
        for who, own in groups.items():
            if own:
                listed = f"{own[0]} to {own[-1]}" if len(own) > 3 else ", ".join(map(str, own))
                parts.append(f"{who} on {counted(len(own), 'seed')} ({listed})")
    return "; ".join(parts)


def _is_of_placebo(seed: int) -> bool:
    """Return whether a seed is one of a comparison's placebo, at whichever stage."""
    return seed % CONFIRM_SEED_BASE >= PLACEBO_SEED_BASE


def dominated_text(found: Findings) -> str:
    """Return which confirmed networks left the front on the test split, so that they are not hidden."""
    complete = confirmed(found.pooled.trials)
    shown = [row["trial"] for row in found.rows]  # the user's settings are said elsewhere
    off = [n for n in complete["trial"].to_list() if n not in shown]
    if not found.tested or found.provisional or not off:
        return ""
    word = "confirmed" if found.confirmed else "retrained"
    listed = ", ".join(map(str, off[:20])) + (" …" if len(off) > 20 else "")
    chances = [found.assessed.front.get(n, 0.0) for n in off] if found.assessed is not None else []
    one = len(off) == 1
    who = "It" if one else "The most probable of them"
    likely = f" {who} is on it with P = {max(chances):.2f}." if chances else ""
    are, theirs, they_are = ("is", "its", "it is") if one else ("are", "their", "they are")
    return (
        f"{len(off)} of the {complete.height} {word} networks {are} no longer on the front with {theirs} test numbers "
        f"(trial{'s' * (not one)} {listed}); {they_are} in the figure and in trials.csv.{likely}"
    )


def fit_text(study: Study, found: Findings) -> str:
    """Return the fit in a few sentences, or why there is none."""
    fit, metric = found.fit, quality_name(study)
    if found.provisional:
        return f"No curve is fitted before every confirmation has ended: {open_text(found.confirmations)}."
    error = f"1 − {metric}" if is_share(metric) else spell_metric(metric)
    subject = f"error ({error}) against {spell_metric(size_metric(study))}"
    if fit.fitted is None or not fit.identifiable:
        return f"Curve of {subject}: not identifiable, because {fit.reason}. No curve is drawn."
    counts = f"{fit.sizes} sizes, {fit.networks} networks and {fit.points} runs"
    text = f"For the {subject}, {counts}, AICc prefers {EQUATIONS[fit.fitted.form]}"
    if fit.label != "constant":
        text += f": α = {fit.exponent:.3g} (95% interval {fit.exponent_low:.3g} to {fit.exponent_high:.3g})"
    if fit.label != "log-linear":
        text += f", E = {fit.floor:.3g}"
    text += f". The networks scatter about it by {100 * fit.misfit:.2g}%"
    reach = f"from {compact(fit.smallest)} to {compact(fit.largest)}"
    text += f". Measured {reach}; not to be extrapolated past {MAX_EXTRAPOLATION:g}x."
    return text if found.tested else f"{text} It rests on search-stage numbers, which look better than they are."


def hypervolume_text(study: Study, found: Findings) -> str:
    """Return the hypervolume with its rule; with one objective the best value instead."""
    if not found.front.height or found.provisional:
        return ""
    if len(study.objectives) == 1:
        return "One objective is declared, so the front is the best value alone and no hypervolume is computed."
    volume = found.assessed.volume if found.assessed is not None else None
    measured = hypervolume(found.pooled.trials, study.objectives, constraints=study.constraints)
    value = f"{measured.value:.5g}"
    if volume is not None:
        interval = f"(95% interval {volume.low:.5g} to {volume.high:.5g})"
        value = f"{volume.value:.5g} {interval}, corrected for noise; that of the measured means is {value}"
    return f"Hypervolume {value}. {measured.rule}"


CONFIRMATION = {
    "held_out": "Where a confirmation stage ran, the front's configurations were retrained on fresh seeds and only "
    "then read on the test split. Those numbers chose no network that was retrained; they select the front among the "
    "retrained ones.",
    "paper": "Where a confirmation stage ran, the front's configurations were retrained on fresh seeds. They were "
    "chosen on the test split that they are measured on, so their numbers still look better than they are.",
}
COMPARED = (
    (
        "To the best",
        "Differences are paired by seed and adjusted for the seeds that a network lacks (least squares on networks and "
        "seeds). Each interval is of the difference to the best of the other networks, whichever that is; all of a "
        "table hold together with 95%, over all looks: the first has 80% of the 5%, each later one less.",
    ),
    (
        "Verdict",
        "worse: the interval lies below the best. non-inferior: the network is less than confirm.margin below every "
        "other one, by one-sided tests at the look's share of 5%, Holm over networks. not distinguished: neither is "
        "shown.",
    ),
    (
        "The best",
        "Its number is corrected for being chosen: each seed is read from the network that is best on the other seeds. "
        "Its interval is the hybrid one of Andrews, Kitagawa and McCloskey (2024).",
    ),
    (
        "P(front)",
        "The share of 2,000 draws of the true means in which the network is on the front. A draw is from the "
        "posterior: means are drawn towards those of networks of similar cost, the more the noisier they are. "
        "The hypervolume and its interval are the mean and the quantiles of such draws.",
    ),
)
METHODS = (
    (
        "Intervals",
        "95% Student t intervals over replicates (seeds), clipped to the range that the metric can take. Where a mean "
        f"accuracy is above {NEAR_ONE:g}, the interval is that of the mean of lognormal errors (Zou, Huo and Taleban "
        "2009). Where the value of each test sample was kept, the interval of a mean is for other seeds and other "
        "samples of the same kind: the variances of seeds, of samples and of single seeds on single samples, from a "
        "two-way layout, with Satterthwaite's degrees of freedom, on the log odds of a share. None says how another "
        "data set would turn out.",
    ),
    (
        "Fit",
        "Constant, A·N^-α and E + A·N^-α are fitted to each network's mean log error by Huber loss (corner 0.001) and "
        f"compared by AICc. A curve is drawn only with at least {MIN_SIZES} sizes over {MIN_DECADES} decades, where "
        "every start of the fit agrees, the largest size falls in the band predicted from the others, the replicates "
        "do not contradict the form, and the interval of α (smoothed residual bootstrap over networks, t quantile "
        "with networks - k degrees of freedom) excludes 0. Replicates contradict a form if the networks miss it by "
        f"more than a scatter of {100 * SCATTER:g}% explains, or by more than the replicates explain and in an order "
        "of size.",
    ),
    (
        "Q",
        "Q = K·M/P: training samples times outputs per trainable parameter. Below 1 the network has more parameters "
        "than constraints.",
    ),
    (
        "FLOPs",
        "Floating-point operations of one forward pass of one sample; a multiply-add counts two.",
    ),
)


def methods(study: Study, *, compared: bool) -> list[tuple[str, str]]:
    """Return the notes on how the numbers were made, as term and text."""
    objectives = ", ".join(f"{o.direction} {o.metric}" + (" (log10)" if o.log else "") for o in study.objectives)
    rule = (
        f"Objectives: {objectives}. A trial is on the front when no other complete trial is at least as good on every "
        "objective and better on one; trials stopped early and failed trials never enter."
    )
    if study.constraints:
        bounds = ", ".join(map(constraint_text, study.constraints))
        rule += f" Only trials with {bounds} may be on it."
    best = (
        "The best of K equal configurations looks better than it is (by 1.5 standard deviations for K = 10, 2.5 for "
        "K = 100)."
    )
    stages = [("Front", rule), ("Confirmation", f"{best} {CONFIRMATION[study.protocol]}")]
    return [*stages, *(COMPARED if compared else ()), *METHODS]
