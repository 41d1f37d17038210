"""Evidence at one snapshot: summaries of usable results per cell, failures, compatibility and devices.

A result is usable if it ran, no verification found its outputs wrong, and it was measured, or imported without a
suspicion.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from operator import attrgetter, itemgetter
from sys import intern
from typing import Any, TypeVar

from accel_platform.analysis.query.cells import SHAPE
from accel_platform.backends.probes import processor_id
from accel_platform.hardware.host import host_id
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.warehouse.build_layer import table_sql
from accel_platform.warehouse.reader import Reader
from predictor.data.published_scatter import PublishedScatter
from predictor.schemas.responses import INTERVAL_LEVEL, Compatibility, Interval, Where

REFERENCE_HOSTS = frozenset({"host-40bb15d51d61", "host-f00cb1b79e00"})
"""Hosts of the reference campaigns, whose measurements come with the package."""

_MAX_EVENT_IDS = 20
"""Largest number of event ids per cell, newest first."""
_MAX_RESULTS = 1 << 17
"""Results that are summarized at once: their samples are held in memory."""
T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """Place where a model can run: a hardware name, its backend, and a device."""

    hardware: str
    backend: str
    device_id: str | None
    """Id of the device; None for imported results that name none and may be of different devices."""
    device: str | None = field(default=None, compare=False)
    """Display name. Different devices may share one."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash, cached because one answer looks up targets some 200 times."""
        return hash((self.hardware, self.backend, self.device_id))

    def sort_key(self) -> tuple[str, str, str]:
        """Return a key to sort by."""
        return self.hardware, self.backend, self.device_id or ""


@dataclass(frozen=True)
class CellKey:
    """Key of a cell: one configuration of one model on one target."""

    model_id: str
    target: Target
    mode: str
    precision: str | None
    batch_size: int
    sequence_length: int | None
    image_size: float | None = None
    """Pixels along an edge, if a file states them; None for the model's own size."""
    output_tokens: int | None = None
    """Generated tokens per item; None in other modes, and where a file does not state them."""

    def key_without(self, name: str) -> Hashable:
        """Return a key that is equal for cells that differ only in the named field, one of SCALABLE_FIELDS."""
        return name, _FIELDS_WITHOUT[name](self)


SCALABLE_FIELDS = ("target", "batch_size", "sequence_length")
"""Fields in which a cell may differ from the cell that its estimate is scaled from."""
_FIELDS_WITHOUT = {
    name: attrgetter(*(field.name for field in fields(CellKey) if field.name != name)) for name in SCALABLE_FIELDS
}


@dataclass(frozen=True)
class CellSummary:
    """Summary of a cell's results under its newest fingerprint."""

    cell: CellKey
    model_family: str
    runs: int
    measured: bool
    """False if all figures are imported."""
    noisy: bool
    """True if all runs were noisy."""
    latency_ms: Interval
    memory_peak_mib: Interval | None
    event_ids: tuple[str, ...]
    energy_j_per_item: Interval | None = None
    """Energy in joules as counted by the device; None without a counter."""
    from_rate: bool = False
    """True if only rates are published, so that the latency is batch size over rate."""
    hosts: tuple[str, ...] = ()
    """Hosts that measured it; empty if all figures are imported."""


@dataclass(frozen=True)
class KnownDevice:
    """Device, or absence of one, as a host last detected it."""

    target: Target
    available: bool
    reason: str | None
    emulated: bool
    cores: int | None
    clock_max_mhz: float | None
    vector_bits: int | None
    memory_mib: float | None
    host_id: str | None


@dataclass(frozen=True)
class FailedCell:
    """Newest failure of a cell that never ran."""

    reason: str
    event_id: str


@dataclass
class Evidence:
    """Results, failures and devices of one snapshot, with indexes for look-ups."""

    snapshot_id: str
    summaries: dict[CellKey, CellSummary]
    failures: dict[CellKey, FailedCell]
    compatibility: dict[tuple[str, str, str | None, str], tuple[Compatibility, str | None]]
    """Compatibility and reason, by model, hardware, device and mode."""
    devices: list[KnownDevice]
    models: dict[str, dict[str, Any]]
    """Rows of the table `models`, by model id."""
    this_host: str
    """Id of the host that answers."""
    this_processor: str
    """Device id of its processor."""
    published: PublishedScatter = field(default_factory=PublishedScatter)
    by_model: dict[str, list[CellSummary]] = field(default_factory=dict)
    by_target: dict[Target, list[CellSummary]] = field(default_factory=dict)
    by_other_fields: dict[Hashable, list[CellSummary]] = field(default_factory=dict)
    """Summaries by `CellKey.key_without` of each scalable field: the neighbors of a cell."""
    batch_sizes: set[int] = field(default_factory=set)
    sequence_lengths: set[int | None] = field(default_factory=set)
    """All measured lengths."""
    image_sizes: dict[str, Counter[float]] = field(default_factory=dict)
    """Cells of each image size that files state, by model: pixels along an edge."""
    by_device: dict[Target, KnownDevice] = field(default_factory=dict)
    """Devices as last detected. If hosts differ, an available one is preferred, then the one of this host."""
    available: set[Target] = field(default_factory=set)
    """Targets that some host has."""
    _derived: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for summary in self.summaries.values():
            self.by_model.setdefault(summary.cell.model_id, []).append(summary)
            self.by_target.setdefault(summary.cell.target, []).append(summary)
            for name in SCALABLE_FIELDS:
                self.by_other_fields.setdefault(summary.cell.key_without(name), []).append(summary)
            self.batch_sizes.add(summary.cell.batch_size)
            self.sequence_lengths.add(summary.cell.sequence_length)
            if summary.cell.image_size is not None:
                self.image_sizes.setdefault(summary.cell.model_id, Counter())[summary.cell.image_size] += 1
        # A host that has the device goes before one that lacks it, and this host before others.
        by_nearness = sorted(self.devices, key=lambda device: (device.available, device.host_id == self.this_host))
        self.by_device.update((device.target, device) for device in by_nearness)
        self.available.update(device.target for device in self.devices if device.available)

    def targets(self) -> list[Target]:
        """Return all targets, sorted: those that were measured, that a host has, or that a host lacks."""
        return self.memoize("targets", lambda: sorted({*self.by_target, *self.by_device}, key=Target.sort_key))

    def where(self, target: Target) -> Where:
        """Return whether this host has or measured the target, another host of this log, or neither."""
        return self.memoize("places", self._places_of_targets).get(target, "elsewhere")

    def where_measured(self, target: Target, hosts: Collection[str]) -> Where:
        """Return where a target is that these hosts have or measured: here, on another host of the log, or elsewhere.

        Clones of a virtual machine share their host's id. Under a reference host's id only the devices of this machine
        are therefore here.
        """
        if self.this_host in hosts and (
            self.this_host not in REFERENCE_HOSTS or target.device_id in self.memoize("present", self._present_devices)
        ):
            return "here"
        return "elsewhere" if REFERENCE_HOSTS.issuperset(hosts) else "mine"

    def _present_devices(self) -> frozenset[str | None]:
        """Return the ids of this machine's devices: its processor, and those last seen under its id beside it."""
        seen = frozenset(d.target.device_id for d in self.devices if d.available and d.host_id == self.this_host)
        return seen if self.this_processor in seen else frozenset([self.this_processor])

    def _places_of_targets(self) -> dict[Target, Where]:
        """Return where each target is that some host has or measured."""
        return {target: self.where_measured(target, hosts) for target, hosts in self._hosts_by_target().items()}

    def _hosts_by_target(self) -> dict[Target, set[str]]:
        hosts: dict[Target, set[str]] = {}
        for device in self.devices:
            if device.available and device.host_id is not None:
                hosts.setdefault(device.target, set()).add(device.host_id)
        for target, summaries in self.by_target.items():
            for summary in summaries:
                hosts.setdefault(target, set()).update(summary.hosts)
        return hosts

    def aliases(self, model_id: str) -> tuple[str, ...]:
        """Return the other names of a model in results."""
        row = self.models.get(model_id)
        if row is None:
            return ()
        return self.memoize(("aliases", model_id), lambda: tuple(json.loads(row["aliases"] or "[]")))

    def knows(self, model_id: str) -> bool:
        """Return whether some cell of a model was measured, imported or failed."""
        return model_id in self.by_model or model_id in self.memoize("failed models", self._failed_models)

    def _failed_models(self) -> frozenset[str]:
        return frozenset(cell.model_id for cell in self.failures)

    def memoize(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a value that depends only on the evidence, computed on first use. Two threads may both compute it.

        Nothing is evicted, so the number of keys must be bounded by the evidence: a key must not hold free values of a
        query.
        """
        value: T
        try:
            value = self._derived[key]
        except KeyError:
            value = self._derived[key] = make()
        return value


def load_evidence(reader: Reader) -> Evidence:
    """Load the evidence of the snapshot in service. Raises WarehouseEmpty before the first publish."""
    while True:
        snapshot_id = reader.snapshot_id
        evidence = Evidence(
            snapshot_id=snapshot_id,
            summaries={summary.cell: summary for summary in _cell_summaries(reader)},
            failures={_cell(row): FailedCell(row["reason"], str(row["event_id"])) for row in reader.rows(_FAILURES)},
            compatibility=dict(_compatibility(reader)),
            devices=observed_devices(reader),
            models={row["model_id"]: row for row in reader.rows("SELECT * FROM models ORDER BY model_id")},
            this_host=host_id(),
            this_processor=processor_id(),
            published=PublishedScatter.of({b: distances for (b,), distances in published_distances(reader).items()}),
        )
        # Read again if another snapshot was published between two queries.
        if reader.snapshot_id == snapshot_id:
            return evidence


def published_distances(reader: Reader, *columns: str) -> dict[tuple[str, ...], list[float]]:
    """Return how far imported figures are from the geometric mean of others of their cell, in natural logs.

    They are grouped by backend and further columns of a cell, such as `model_id`.
    """
    keys = ("backend", *columns)
    rows = reader.rows(_PUBLISHED.format(keys=", ".join(keys)))
    return {tuple(row[key] for key in keys): row["distances"] for row in rows}


# The id of a device, or its name where a file states no id.
_DEVICE = "coalesce(device_id, device_name)"
# Cells as of charts and comparisons, but for what a query cannot name: choices, processes and setups.
_CELL_COLUMNS = ("model_id", "hardware", "backend", "device", *(name for name in SHAPE if name != "processes"))
_CELL = ", ".join(_CELL_COLUMNS)

# Where only the rate of a pass is published, it is the mean time between the ends of two batches.
LATENCY = """coalesce(latency_p50_ms, latency_mean_ms,
    CASE WHEN mode = 'inference' AND throughput_items_per_s > 0 THEN 1e3 * batch_size / throughput_items_per_s END)"""

# The columns of all results would be held in memory if these were materialized.
_USABLE = f"""
WITH timed AS NOT MATERIALIZED (
    SELECT *, {_DEVICE} AS device, {LATENCY} AS latency_ms
    FROM usable_results
    WHERE batch_size IS NOT NULL AND {LATENCY} > 0
        AND coalesce(processes, 1) = 1 -- queries are about one device
),
usable AS NOT MATERIALIZED (
    FROM timed
    -- A figure of a knowledge pack that somebody also imported counts once.
    WHERE result_id NOT IN (
        SELECT own.result_id
        FROM timed AS own SEMI JOIN timed AS pack
            ON starts_with(pack.source, '{SOURCE_PREFIX}')
            AND {" AND ".join(f"own.{c} IS NOT DISTINCT FROM pack.{c}" for c in (*_CELL_COLUMNS, "latency_ms"))}
        WHERE own.provenance <> 'measured' AND NOT starts_with(own.source, '{SOURCE_PREFIX}')
    )
)
"""


def _range_sql(figure: str) -> str:
    """Return SQL of number, smallest, median and largest of a figure, where it is not NULL."""
    return f"{{n: count({figure}), low: min({figure}), p50: median({figure}), high: max({figure})}}"


# A cell's figure is the median over its results, as in the training set, the matrix and comparisons. The samples of all
# runs make one ordered list. The k-th smallest and k-th largest of n enclose the next
# sample with probability (n + 1 - 2k) / (n + 1), whatever its distribution: k is the largest that keeps the level.
_CELL_SUMMARIES = f"""{_USABLE},
cells AS (
    SELECT {_CELL}, fingerprint, min(model_family) AS model_family, min(device_name) AS device_name, count(*) AS runs,
        bool_or(provenance = 'measured') AS measured, bool_and(noisy IS TRUE) AS noisy,
        bool_and(coalesce(latency_p50_ms, latency_mean_ms) IS NULL) AS from_rate, max(recorded_at) AS newest,
        list(DISTINCT host_id) FILTER (provenance = 'measured' AND host_id IS NOT NULL) AS hosts,
        {_range_sql("latency_ms")} AS latency,
        min(latency_min_ms) AS least, max(latency_max_ms) AS most, sum(samples)::BIGINT AS claimed_samples,
        {_range_sql("memory_peak_mib")} AS memory,
        {_range_sql("CASE WHEN energy_j_per_item > 0 THEN energy_j_per_item END")} AS energy,
        list(event_id::VARCHAR ORDER BY recorded_at DESC, event_id)[1:{_MAX_EVENT_IDS}] AS event_ids,
        list_sort(flatten(list(samples_ns) FILTER (samples_ns IS NOT NULL))) AS ordered_ns, len(ordered_ns) AS n,
        greatest(1, floor((n + 1) * {(1 - INTERVAL_LEVEL) / 2}))::INTEGER AS k
    FROM usable LEFT JOIN (SELECT event_id, samples_ns FROM events WHERE samples_ns IS NOT NULL) USING (event_id)
    WHERE hash(model_id) % $parts = $part
    GROUP BY {_CELL}, fingerprint
)
SELECT * EXCLUDE (ordered_ns), ordered_ns[k] / 1e6 AS low, ordered_ns[n + 1 - k] / 1e6 AS high FROM cells
"""

_PUBLISHED = f"""{_USABLE},
cells AS (
    SELECT {_CELL}, list(ln(latency_ms) ORDER BY latency_ms) AS logs
    FROM usable WHERE provenance <> 'measured' GROUP BY {_CELL} HAVING count(*) > 1
),
figures AS (SELECT {_CELL}, logs, unnest(logs) AS log FROM cells)
SELECT {{keys}}, list(abs(log - (list_sum(logs) - log) / (len(logs) - 1))) AS distances FROM figures GROUP BY {{keys}}
"""

_FAILURES = f"""
SELECT {_CELL}, min(device_name) AS device_name, max_by(reason, recorded_at) AS reason,
    max_by(event_id, recorded_at) AS event_id
FROM (SELECT *, {_DEVICE} AS device FROM judged_results)
WHERE counts AND batch_size IS NOT NULL AND coalesce(processes, 1) = 1
GROUP BY {_CELL}
HAVING bool_and(status <> 'ok')
"""

_MATRIX = f"""
SELECT model_id, hardware, {_DEVICE} AS device, mode, state, rating, reason FROM compat_matrix
"""

_DEVICES = """
SELECT hardware, backend, coalesce(device_id, name) AS device, name AS device_name, available, reason, emulated,
    cores, clock_max_mhz, vector_bits, memory_mib, host_id
FROM {observations}
-- Left out: a browser or device that was chosen and is missing, because it tells nothing of the hardware.
WHERE choice IS NULL OR available
ORDER BY observed_at
"""


def observed_devices(reader: Reader, *, gone: bool = False) -> list[KnownDevice]:
    """Return every device as its host last detected it, the newest last; with `gone` also those it has no longer."""
    observations = f"({table_sql('device_observations')})" if gone else "devices"
    return [_device(row) for row in reader.rows(_DEVICES.format(observations=observations))]


def _cell_summaries(reader: Reader) -> Iterator[CellSummary]:
    """Return one summary per cell and fingerprint, sorted so that the last one of each cell is the valid one."""
    parts = 1 + reader.rows("SELECT count(*) AS results FROM results")[0]["results"] // _MAX_RESULTS
    found = []
    for part in range(parts):
        for row in reader.rows(_CELL_SUMMARIES, {"parts": parts, "part": part}):
            validity = (row["measured"], row["newest"], row["fingerprint"] is None, row["fingerprint"] or "")
            found.append((validity, _summary(row)))
    found.sort(key=itemgetter(0))
    return (summary for _, summary in found)


def _summary(row: dict[str, Any]) -> CellSummary:
    return CellSummary(
        cell=_cell(row),
        model_family=intern(row["model_family"]),
        runs=row["runs"],
        measured=row["measured"],
        noisy=row["noisy"],
        from_rate=row["from_rate"],
        latency_ms=_latency_interval(row),
        memory_peak_mib=_observed_range(row["memory"]) if row["memory"]["n"] else None,
        event_ids=tuple(row["event_ids"]),
        energy_j_per_item=_observed_range(row["energy"]) if row["energy"]["n"] else None,
        hosts=tuple(sorted(row["hosts"] or ())),
    )


def _latency_interval(row: dict[str, Any]) -> Interval:
    """Return the median of the runs' figures. Its limits are of raw samples, else stated ones, else the range of runs.

    The middle is the same as the matrix's and the predictor's.
    """
    p50 = row["latency"]["p50"]
    if row["n"] and row["n"] >= 2:
        n, k = row["n"], row["k"]
        level = min(INTERVAL_LEVEL, (n + 1 - 2 * k) / (n + 1))
        # The median of results may lie outside where one long run outweighs several short ones.
        return Interval(p50=p50, low=min(row["low"], p50), high=max(row["high"], p50), level=level)
    least, most, n = row["least"], row["most"], row["claimed_samples"]
    if least is not None and most is not None and n is not None and n >= 2 and least <= p50 <= most:
        return Interval(p50=p50, low=least, high=most, level=(n - 1) / (n + 1))
    return _observed_range(row["latency"])


def _observed_range(observed: dict[str, Any]) -> Interval:
    """Return the range of n figures, which holds the next one with probability (n - 1) / (n + 1)."""
    n, p50 = observed["n"], observed["p50"]
    if n < 2:
        return Interval(p50=p50)
    return Interval(p50=p50, low=observed["low"], high=observed["high"], level=(n - 1) / (n + 1))


def _compatibility(
    reader: Reader,
) -> Iterator[tuple[tuple[str, str, str | None, str], tuple[Compatibility, str | None]]]:
    for row in reader.rows(_MATRIX):
        compatibility = Compatibility(state=row["state"], rating=row["rating"])
        yield (row["model_id"], row["hardware"], row["device"], row["mode"]), (compatibility, row["reason"])


def _target(row: dict[str, Any]) -> Target:
    return _shared_target(row["hardware"], row["backend"], row["device"], row["device_name"] or row["device"])


_shared_target = lru_cache(maxsize=4096)(Target)
"""Targets of equal names as one object, because a hundred thousand cells have a few hundred targets."""


def _cell(row: dict[str, Any]) -> CellKey:
    return CellKey(
        model_id=intern(row["model_id"]),
        target=_target(row),
        mode=intern(row["mode"]),
        precision=row["precision"] and intern(row["precision"]),
        batch_size=row["batch_size"],
        sequence_length=row["sequence_length"],
        image_size=row["image_size"],
        output_tokens=row["output_tokens"],
    )


def _device(row: dict[str, Any]) -> KnownDevice:
    return KnownDevice(
        target=_target(row),
        available=row["available"],
        reason=row["reason"],
        emulated=row["emulated"],
        cores=row["cores"],
        clock_max_mhz=row["clock_max_mhz"],
        vector_bits=row["vector_bits"],
        memory_mib=row["memory_mib"],
        host_id=row["host_id"],
    )
