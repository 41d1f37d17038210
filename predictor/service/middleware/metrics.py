"""The service's figures for Prometheus. Several workers share theirs through files, where `serve` says so."""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus-client learns, as it is imported, that several processes share their figures."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

IN_FLIGHT = Gauge("accel_requests_in_flight", "Requests that are being answered.", multiprocess_mode="livesum")
SWAPS = Counter("accel_advisor_swaps", "Times that a worker put a new snapshot or predictor into service.")
_REQUESTS = Counter("accel_requests", "Requests, by the route that answered them.", ("method", "route", "status"))
_SECONDS = Histogram(
    "accel_request_duration_seconds",
    "From the request's head to the end of its answer.",
    ("method", "route"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
"""Of each set of labels, found again without locks: this stands in every request."""


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count one request; an answer that never began has status 0."""
    known = _children.get((method, route, status))
    if known is None:
        labelled = method if method in _METHODS else "other"
        known = _REQUESTS.labels(labelled, route, str(status)), _SECONDS.labels(labelled, route)
        if labelled == method:
            _children[method, route, status] = known
    known[0].inc()
    known[1].observe(seconds)


class _State(Collector):
    """Figures that are read when they are asked for, and are the same whichever worker reads them."""

    def __init__(self, gauges: dict[str, tuple[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=value)


def render_metrics(gauges: dict[str, tuple[str, float]]) -> bytes:
    """Everything counted so far, of all workers, and these gauges (name to help and value), as Prometheus reads it."""
    own = CollectorRegistry()
    own.register(_State(gauges))
    if MULTIPROCESS_DIR in os.environ:
        # In files of the workers; those that ended count on.
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared) + generate_latest(own)
    return generate_latest(REGISTRY) + generate_latest(own)
