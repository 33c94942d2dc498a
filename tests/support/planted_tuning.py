"""A training function with a planted best rate for each arm of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

PEAK = {"whole": -2.0, "part": -1.3}  # log10 of the rate at which each arm is best


def train(config: Mapping[str, Any], run: Any) -> dict[str, float]:
    """Return the accuracy of an arm at its rate, with noise of seed and rate; the arm `broken` never trains."""
    arm = str(config["arm"])
    if arm == "broken":
        raise ValueError("this arm cannot be trained")
    gain = 0.1 * math.exp(-((math.log10(config["rate"]) - PEAK[arm]) ** 2))
    noise = 0.02 * float(run.stream("noise", arm, str(config["rate"])).standard_normal())
    return {"val_accuracy": 0.7 + gain + noise, "val_loss": 0.5}
