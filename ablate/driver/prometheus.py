"""Prometheus metrics of a running driver: trials by state, reports, the best values, the size of the front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ablate.base.errors import RequestError
from ablate.base.redaction import error_text
from ablate.core.objectives import signed
from ablate.driver.options import METRICS_HOST

if TYPE_CHECKING:
    from ablate.tuning import Search


class StudyCollector(Collector):
    """Reads the search at each request; stores nothing."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics: one label set per data set, and per state or objective."""
        study = self._search.study
        trials = GaugeMetricFamily("ablate_trials", "Trials by state.", labels=["study", "dataset", "state"])
        for dataset, counts in self._search.counts().items():
            for state, count in counts.items():
                trials.add_metric([study.name, dataset, state.lower()], count)
        yield trials
        reports = CounterMetricFamily(
            "ablate_reports", "Reports committed, by all drivers.", labels=["study", "dataset"]
        )
        for dataset, count in self._search.reported().items():
            reports.add_metric([study.name, dataset], count)
        yield reports
        size = GaugeMetricFamily("ablate_front_size", "Trials on the front.", labels=["study", "dataset"])
        best = GaugeMetricFamily("ablate_best", "Best value of an objective.", labels=["study", "dataset", "metric"])
        for dataset in study.labels:
            members = self._search.front(dataset)
            size.add_metric([study.name, dataset], len(members))
            for index, objective in enumerate(study.objectives):
                values = [member.values[index] for member in members]
                if values:
                    value = min(values, key=partial(signed, objective))
                    best.add_metric([study.name, dataset, objective.metric], value)
        yield from (size, best)


def require_free(port: int | None, *, host: str = METRICS_HOST) -> None:
    """Raise RequestError if no server can listen on `host` and `port`; do nothing without a port."""
    if port is not None:
        with _listen(CollectorRegistry(), port, host):
            pass


@contextmanager
def serve_metrics(search: Search, port: int | None, *, host: str = METRICS_HOST) -> Iterator[None]:
    """Serve the metrics of `search` at http://host:port/metrics inside the block; do nothing without a port.

    Raises RequestError if the server cannot listen on `host` and `port`.
    """
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(StudyCollector(search))
    with _listen(registry, port, host):
        yield


@contextmanager
def _listen(registry: CollectorRegistry, port: int, host: str) -> Iterator[None]:
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise RequestError(
            f"--metrics-port {port}: {host}:{port} cannot be listened on ({error_text(error, host)})."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
