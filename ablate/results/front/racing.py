"""The text of page and terminal about further confirmation seeds: who got them, and what is certain now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.base.plain_text import counted
from ablate.results.trials.results import Results

MOST_NAMED = 20  # networks that a sentence names


def racing_text(results: Results, dataset: str) -> str:
    """Return how many further seeds were given to which networks and why it ended, from the `raced` events.

    Empty without such an event. Networks are named by the search trials that they confirm.
    """
    rounds = [event.payload for event in results.events_of(dataset, "raced")]
    if not rounds:
        return ""
    given = Counter(int(network) for each in rounds for network, _ in each["given"])
    last, total = rounds[-1], sum(given.values())
    if not total:
        text = "No network was given further seeds"
    else:
        several = sum(bool(each["given"]) for each in rounds)
        listed = _list([f"{network} ({count})" for network, count in sorted(given.items())])
        text = (
            f"{counted(total, 'further seed')} {'was' if total == 1 else 'were'} given in {counted(several, 'round')}"
            f" to networks whose place on the front was uncertain, and to their strongest rivals: those of search"
            f" trial{'s' * (len(given) != 1)} {listed}"
        )
    return f"{text}. {_end(last)}"


def _end(last: Mapping[str, Any]) -> str:
    """Return why the last round ended, or that it has not."""
    if last["given"]:
        return f"Round {last['round']} is under way."
    if last["reason"] == "certain":
        return "Of each confirmed network it is certain (5% error over all rounds) whether it is on the front."
    shown = _list([str(n) for n in sorted(int(n) for n in last["seeds"] if n not in last["decided"])])
    return (
        f"The budget of {counted(last['budget'], 'seed')} is spent. It is still uncertain whether the networks of"
        f" search trials {shown} are on the front."
    )


def _list(words: Sequence[str]) -> str:
    more = [f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
    return ", ".join([*words[:MOST_NAMED], *more])
