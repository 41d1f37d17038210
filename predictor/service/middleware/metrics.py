"""Prometheus metrics of the service; several workers share theirs through files."""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that prometheus-client reads on import: the folder in which processes share their metrics."""
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
"""Metrics by their labels, looked up without locks, because every request does."""


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count one request; an answer that never began has status 0."""
    children = _children.get((method, route, status))
    if children is None:
        method_label = method if method in _METHODS else "other"
        children = _REQUESTS.labels(method_label, route, str(status)), _SECONDS.labels(method_label, route)
        if method_label == method:
            _children[method, route, status] = children
    children[0].inc()
    children[1].observe(seconds)


class _GaugeCollector(Collector):
    """Gauges computed on each scrape, the same whichever worker answers it."""

    def __init__(self, gauges: dict[str, tuple[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=value)


def render_metrics(gauges: dict[str, tuple[str, float]]) -> bytes:
    """Return all metrics of all workers, and these gauges (help and value by name), in the Prometheus text format."""
    gauge_registry = CollectorRegistry()
    gauge_registry.register(_GaugeCollector(gauges))
    if MULTIPROCESS_DIR in os.environ:
        # The files include those of workers that ended.
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared) + generate_latest(gauge_registry)
    return generate_latest(REGISTRY) + generate_latest(gauge_registry)
