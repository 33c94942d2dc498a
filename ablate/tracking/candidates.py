"""What MLflow shows of a campaign's candidates, computed from the ledger's events (pure; MLflow is not imported)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.ledger import EventRecord
from ablate.ledger.requests import ANSWERED, JUDGED
from ablate.study.campaign_sections import Campaign
from ablate.tracking.contents import Point, cut, milliseconds

NUMBER, REIGN, VERDICT = "ablate.candidate", "ablate.reign", "ablate.verdict"
CHAMPION = "ablate.champion"


def candidate_tags(events: Sequence[EventRecord]) -> dict[int, dict[str, str]]:
    """Return the tags of the runs of each candidate; of number 0, the champion of the opening, its number alone.

    They are the candidate's number, the reign in which it was submitted, its verdict, and perhaps its reason, the
    revision of its code, its note and by whom it is.
    """
    reign, found, judged = 1, {0: {NUMBER: "0"}}, dict[int, int]()
    for event in events:
        payload = event.payload
        number = payload.get("candidate")
        if event.kind == ANSWERED and number is not None and number not in found:
            said = {f"ablate.{name}": cut(payload[name]) for name in ("note", "by") if name in payload}
            if "code" in payload:
                said["ablate.code"] = payload["code"]["revision"]
            found[number] = {NUMBER: str(number), REIGN: str(reign), VERDICT: "open", **said}
        elif event.kind == ANSWERED and number in found and payload["runs"] > judged.get(number, math.inf):
            found[number][VERDICT] = "open"  # it was undecided, and may have more runs
        elif event.kind == JUDGED:
            number = payload["candidate"]
            reason = {"ablate.reason": payload["reason"]} if "reason" in payload else {}
            found[number] |= {VERDICT: payload["state"], **reason}
            judged |= {number: payload["runs"]} if payload["state"] == "undecided" else {}
            if payload["state"] == "keep":
                reign += 1
                for tags in found.values():
                    if tags.get(VERDICT) == "open":
                        tags[VERDICT] = "superseded"
    return found


def parent_tags(events: Sequence[EventRecord]) -> dict[str, str]:
    """Return the tags of the parent run: the champion and its reign."""
    kept = [e.payload["candidate"] for e in events if e.kind == JUDGED and e.payload["state"] == "keep"]
    return {CHAMPION: str(kept[-1] if kept else 0), REIGN: str(len(kept) + 1)}


def parent_points(campaign: Campaign, events: Sequence[EventRecord]) -> list[Point]:
    """Return, by candidate, the gain of its decision, and the error rate that was spent when it was submitted."""
    k, spent, seen, points = 0, 0.0, set[int](), list[Point]()
    for event in events:
        payload, when = event.payload, milliseconds(event.created_at)
        values: dict[str, float] = {}
        if event.kind == ANSWERED and "candidate" in payload and payload["candidate"] not in seen | {0}:
            seen.add(payload["candidate"])
            k += 1
            spent += campaign.rule.rate(k)
            values["error_spent"] = spent
        elif event.kind == JUDGED:
            values |= {"gain": payload["gain"]} if "gain" in payload else {}
            if payload["state"] == "keep" and payload["claim"] != "not-worse" and campaign.error == "each":
                k, spent = 0, 0.0
        points += [Point(key=n, value=v, timestamp=when, step=payload["candidate"]) for n, v in values.items()]
    return points
