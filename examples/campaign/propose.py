"""A program that proposes configurations and learns from each verdict; the closing says what the winner is worth."""

from __future__ import annotations

import ablate

rates = [0.003, 0.0003]
with ablate.campaign("propose.yaml", executor="local", tracker="none") as campaign:
    for rate in rates:
        verdict = campaign.judge({"config.lr": rate}, note=f"rate {rate}")
        print(f"{rate}: {verdict.state}, gain {verdict.gain:.3f} after {verdict.runs} runs")
    print(campaign.close()["closing"])
