"""pytest-benchmark's JSON: seconds of a round's iteration per test, as statistics and, on request, as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.row_access import object_of, text_of
from migrations.normalize.units import NS_PER_S, count, samples_ns
from migrations.sources.documents import Document
from migrations.tools import microbenchmark

_HOST = ("node", "machine", "processor", "system", "release")
_SOFTWARE = ("python_version", "python_implementation", "python_compiler")
_ABOUT = ("group", "params", "param", "options", "extra_info")
_READ = {*microbenchmark.LATENCIES, "data", "rounds"}
_MANY_SAMPLES_FROM_NS = 1_000


def detect(document: Document) -> float:
    """Return high confidence where tests have statistics with rounds."""
    tests = object_of(document.value).get("benchmarks")
    if (
        not isinstance(tests, list)
        or not {"machine_info", "commit_info", "datetime"} & object_of(document.value).keys()
    ):
        return 0.0
    return 0.95 if not tests or any("stats" in object_of(test) for test in tests) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per test. Samples are used where the clock's nanoseconds are fine enough for them."""
    value = document.value
    machine = object_of(value.get("machine_info"))
    cpu = object_of(machine.get("cpu"))
    for index, test in enumerate(value["benchmarks"]):
        pointer = microbenchmark.member("/benchmarks", index)
        if not isinstance(test, dict):
            yield refuse(pointer, "unexpected_shape", "an object was expected", test)
            continue
        stats = object_of(test.get("stats"))
        cell = microbenchmark.cell(
            document.source_path,
            pointer,
            test.get("fullname") or test.get("name"),
            tool="pytest-benchmark",
            times=(value.get("datetime"),),
            host={key: machine.get(key) for key in _HOST},
            cpu=text_of(cpu.get("brand_raw") or cpu.get("brand")),
            software={key: str(machine[key]) for key in _SOFTWARE if machine.get(key)},
            original={
                **{key: test.get(key) for key in _ABOUT},
                "commit": object_of(value.get("commit_info")).get("id"),
                "stated": {key: stats[key] for key in stats if key not in _READ},
            },
        )
        figures = _figures(stats)
        if not any(figures.values()):
            reason = text_of(test.get("error") or test.get("fail")) or "the test holds no statistics"
            yield cell.result("failed", {}, reason=reason)
        else:
            yield cell.result("ok", {**figures, "iterations": count(stats.get("rounds"))}, units={"stats": "s"})


def _figures(stats: dict[str, Any]) -> dict[str, Any]:
    samples = samples_ns(stats.get("data"), ns_per_unit=NS_PER_S)
    if samples and min(samples) >= _MANY_SAMPLES_FROM_NS:
        return {"samples_ns": samples}
    return microbenchmark.latencies(stats)
