"""Statistics over results for the suspicion rules: typical latency, spread, ratios and equality."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from statistics import correlation, fmean, median

from accel_platform.events.types import ResultRecorded
from migrations.normalize.records import Record

_PERCENTILES = ("latency_p90_ms", "latency_p95_ms", "latency_p99_ms", "latency_min_ms", "latency_max_ms")
_UNITS = {"latency": "ms", "throughput": "items/s", "memory": "MiB"}


def latency_ms(result: ResultRecorded) -> float | None:
    """Return the mean time of one batch, from samples if there are any; the median where no mean is stated."""
    if result.samples_ns:
        return fmean(result.samples_ns) / 1e6
    return result.latency_mean_ms if result.latency_mean_ms is not None else result.latency_p50_ms


def median_ms(result: ResultRecorded) -> float | None:
    """Return the median time of one batch; the mean where no median is stated."""
    if result.samples_ns:
        return median(result.samples_ns) / 1e6
    return result.latency_p50_ms if result.latency_p50_ms is not None else result.latency_mean_ms


def time_ms(result: ResultRecorded) -> float | None:
    """Return the time of one batch, from the rate where only that is stated; None for neither, or zero."""
    rate = result.throughput_items_per_s
    return latency_ms(result) or (result.batch_size * 1000 / rate if rate and result.batch_size else None)


def symmetric_ratio(ratio: float) -> float:
    """Return a ratio as a factor of at least 1; infinity for zero."""
    return max(ratio, 1 / ratio) if ratio else math.inf


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation, -1 to 1; NaN where all numbers of a side are equal."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan
    return correlation(_ranks(a), _ranks(b))


def _ranks(numbers: Sequence[float]) -> list[float]:
    """Return the rank of each number, equal ones sharing their mean."""
    ordered = sorted(numbers)
    return [(bisect_left(ordered, number) + bisect_right(ordered, number)) / 2 for number in numbers]


def relative_standard_error(result: ResultRecorded) -> float:
    """Return the relative standard error of the mean; 0 without samples."""
    samples = result.samples_ns
    mean = fmean(samples) if len(samples) > 1 else 0.0
    if not mean:
        return 0.0
    # In floats: the statistics module computes exactly, a hundred times slower.
    return math.sqrt(math.fsum((sample - mean) ** 2 for sample in samples)) / len(samples) / mean


def stated_figures(result: ResultRecorded) -> dict[str, float]:
    """Return latency, throughput and memory that the file states without samples."""
    if result.samples_ns:
        return {}
    found = {}
    if (latency := latency_ms(result)) is not None:
        found["latency"] = latency
    if result.throughput_items_per_s is not None:
        found["throughput"] = result.throughput_items_per_s
    if result.memory_peak_mib is not None:
        found["memory"] = result.memory_peak_mib
    return found


def has_other_figure(result: ResultRecorded) -> bool:
    """Return whether a figure besides mean, median and rate is known: percentile, device memory or tokens."""
    tokens = (
        "speedup",
        "tokens_per_s",
        "time_per_output_token_ms",
        "time_to_first_token_ms",
        "throughput_tokens_per_s",
    )
    claimed = result.original.get("stated")
    known = [getattr(result, name, None) for name in (*_PERCENTILES, "memory_device_peak_mib", *tokens)]
    known += [claimed.get(name) for name in tokens] if isinstance(claimed, dict) else []
    return any(known)


class RecordSet(list[Record]):
    """Records of one document, with what several rules ask of them found once."""

    @cached_property
    def with_figures(self) -> list[int]:
        """Positions of the successes with a latency or a throughput."""
        return [
            index
            for index, record in enumerate(self)
            if (result := record.result).status == "ok"
            and (result.throughput_items_per_s is not None or has_latency(result))
        ]

    @cached_property
    def repeated(self) -> list[list[int]]:
        """Groups of at least two results with at least two exactly equal figures."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index in self.with_figures:
            result = self[index].result
            figures: tuple[object, ...] = result.samples_ns
            if not figures:
                figures = (latency_ms(result), result.throughput_items_per_s, result.memory_peak_mib)
            if len(figures) - figures.count(None) > 1:
                groups[figures].append(index)
        return [group for group in groups.values() if len(group) > 1]

    def equal_figures(self, key: Callable[[ResultRecorded], Hashable]) -> Iterator[list[int]]:
        """Yield groups of at least two results with equal key and at least two exactly equal figures."""
        for group in self.repeated:
            parts: dict[Hashable, list[int]] = defaultdict(list)
            for index in group:
                parts[key(self[index].result)].append(index)
            yield from (part for part in parts.values() if len(part) > 1)


def has_latency(result: ResultRecorded) -> bool:
    """Return whether a mean or median is known, or samples are."""
    return bool(result.samples_ns) or result.latency_mean_ms is not None or result.latency_p50_ms is not None


def describe_figures(result: ResultRecorded) -> str:
    """Return the figures in words, for evidence."""
    if result.samples_ns:
        return f"the same {len(result.samples_ns)} samples"
    return ", ".join(f"{name} {value:g} {_UNITS[name]}" for name, value in stated_figures(result).items())
