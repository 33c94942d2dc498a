"""What Prometheus is told equals what the ledger holds."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ablate.base.errors import RequestError
from ablate.core.trial import TrialState
from ablate.driver.prometheus import serve_metrics
from ablate.ledger import Ledger
from support.ports import free_port
from support.searches import hold_of, run_trial, search_of, study_of, url_in


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values, without the study's name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        assert sample.labels["study"] == "s"
        found[(sample.name, *(value for label, value in sample.labels.items() if label != "study"))] = sample.value
    return found


def test_what_is_scraped_is_what_the_ledger_holds_at_that_moment(tmp_path: Path) -> None:
    study = study_of(datasets={"digits": {}, "mnist": {}}, scheduler={"name": "asha", "min_epochs": 3})
    port = free_port()
    with Ledger.open(url_in(tmp_path)) as ledger, hold_of(study, ledger) as writer:
        search = search_of(study, writer, ledger)
        with serve_metrics(search, port):
            before = scraped(port)
            assert {value for key, value in before.items() if key[0] != "ablate_best"} == {0.0}
            for _ in range(9):
                config = search.next_trial()
                assert config is not None
                run_trial(search, config)
            assert search.next_trial() is not None
            now = scraped(port)
        for dataset in study.labels:
            trials = ledger.trials("s", dataset)
            states = Counter(trial.state for trial in trials)
            assert {state: now["ablate_trials", dataset, state.value.lower()] for state in TrialState} == {
                state: states.get(state, 0) for state in TrialState
            }
            reports = [r for r in ledger.reports("s", dataset) if r.replicate == 0]
            assert now["ablate_reports_total", dataset] == len(reports)
            front = search.front(dataset)
            assert now["ablate_front_size", dataset] == len(front)
            assert now["ablate_best", dataset, "val_accuracy"] == max(member.values[0] for member in front)
            assert now["ablate_best", dataset, "params"] == min(member.values[1] for member in front)
        assert sum(value for key, value in now.items() if key[0] == "ablate_trials" and key[2] == "running") == 1


def test_a_port_that_is_taken_is_said_in_one_line_and_none_serves_nothing(tmp_path: Path) -> None:
    study = study_of()
    with Ledger.open(url_in(tmp_path)) as ledger, hold_of(study, ledger) as writer:
        search = search_of(study, writer, ledger)
        with serve_metrics(search, None):
            pass
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with (
                pytest.raises(
                    RequestError, match=rf"--metrics-port {port}: 127.0.0.1:{port} cannot be listened on \(.*in use"
                ),
                serve_metrics(search, port),
            ):
                pass
