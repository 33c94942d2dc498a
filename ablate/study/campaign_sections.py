"""The section `campaign` of a study file: how changes are judged one after the other (docs/campaign.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ablate.core.config import MOST_SEEDS, Frozen, Positive
from ablate.study.sections import Metric

if TYPE_CHECKING:
    from ablate.base.judging import Effort, Rule

Share = Annotated[float, Field(gt=0, le=1)]
OF_A_CAMPAIGN: dict[str, Any] = {  # its runs are trained in full, and only its closing opens the test split
    "sampler": {"name": "random"},
    "scheduler": {"name": "none"},
    "confirm": None,
}


class Closing(Frozen):
    """The comparison of the first champion with the last one, on fresh seeds, that ends a campaign."""

    replicates: Annotated[int, Field(ge=2, le=MOST_SEEDS)] = 8
    """Fresh seeds on which each of the two is trained."""
    test: bool = True
    """Whether they are compared on the test split, which is opened once. `false`: on the validation split."""


class Campaign(Frozen):
    """Changes that are judged one after the other against a champion, each on as few seeds as it needs."""

    mode: Literal["claims", "explore"] = "claims"
    """`claims`: a change that does nothing is kept in at most 5% of campaigns. `explore`: keep early, and be wrong more
    often; only the closing is a claim."""
    error: Literal["each", "any"] = "each"
    """Whether the 5% hold between two keeps, or for the whole campaign. The latter finds fewer changes."""
    reference: Literal["reuse", "fresh"] = "reuse"
    """Whether a new champion keeps the runs by which it won, or begins with fresh seeds."""
    gate: Literal["better", "not-worse"] = "better"
    """What a change must be to be kept. `not-worse` than the champion by more than `margin`."""
    expect: Positive = 50
    """Number of candidates that share the error rate about equally. The campaign may be longer."""
    length: Positive | None = None
    """Number of candidates, if it is known: equal parts of the error rate for these, none for later ones."""
    runs: Positive = 32
    """Runs of a candidate at most; a candidate that is not decided by then is not kept."""
    effort: Literal["frugal", "normal", "thorough"] | None = None
    """How soon a hopeless candidate is given up. Default: normal; frugal in mode `explore`."""
    gain: Annotated[float, Field(ge=0)] = 0.0
    """The least gain that is worth a keep, in the metric's unit."""
    margin: dict[Metric, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The loss of quality that a cheaper candidate, or `gate: not-worse`, may have. Write it before the runs."""
    cheaper: dict[Literal["params", "params_body", "flops", "wall_seconds"], Share] = Field(default_factory=dict)
    """Keep a candidate that is not worse if it has at most this share of the champion's cost, as `{params: 0.9}`.
    `wall_seconds`, the time of training, must be shown by a t test over its runs."""
    early: bool = True
    """Whether a candidate is discarded when its first run is far behind the champion's runs at a third (2 standard
    deviations) or two thirds (1.5) of its training. `false` if good candidates start slowly."""
    diverged: dict[Metric, float] = Field(default_factory=dict)
    """What a run that diverges counts as, by metric. Without it, a candidate with such a run is discarded."""
    guard: tuple[str, ...] = ()
    """Files and folders that no candidate may change, as `[evaluate.py, data/]`."""
    link: tuple[str, ...] = ()
    """Files and folders that git ignores, such as data: every version of the code gets a link to them."""
    evaluate: str | None = None
    """Command that measures what a candidate's command has written to `{output}`, with the code of the opening."""
    close: Closing = Closing()

    @property
    def pace(self) -> Effort:
        """`effort`, or the default of the mode."""
        from ablate.base.judging import default_effort  # imports scipy

        return self.effort or default_effort(self.mode)

    @property
    def rule(self) -> Rule:
        """The rule that judges."""
        from ablate.base.judging import Rule

        return Rule.of(mode=self.mode, effort=self.pace, expect=self.expect, length=self.length, most=self.runs)
