"""Benchmark cells: their planning, their keys in the log, and their groups by process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns
from accel_platform.backends.detect import Inventory, fingerprint_of
from accel_platform.backends.registry import Artifact, Runtime, runtime_for
from accel_platform.errors import InvalidInput
from accel_platform.events.log import EventLog, Snapshot
from accel_platform.events.types import MeasuredSeries, Mode, ResultRecorded, RunStarted
from accel_platform.hardware.cpu import usable_cores
from accel_platform.workloads.model_catalog import ModelSpec, model_set, resolve_model, sequence_length_for

SEGMENT_PREFIX = "bench-"
"""Prefix of every segment that the runner appends."""


@dataclass(frozen=True)
class Cell:
    """One model on one hardware in one configuration: the unit that is measured, fails and is repeated."""

    model: ModelSpec
    hardware: str
    """A hardware name, with its choice if it has one: `cpu`, `wasm:firefox`."""
    batch_size: int
    sequence_length: int | None = None
    """Tokens; None for models whose inputs have one fixed size."""
    precision: str = "float32"
    mode: Mode = "inference"
    processes: int = 1
    """Number of training processes, each on a batch of its own."""

    @property
    def runtime(self) -> Runtime:
        """Runtime that serves its hardware name in its mode."""
        return runtime_for(self.hardware).in_mode(self.mode)

    @property
    def weights_sha256(self) -> str | None:
        """SHA-256 of real weights; None for random ones."""
        return self.model.weights.sha256 if self.model.weights else None

    @property
    def label(self) -> str:
        """Readable name, which omits default values."""
        length = f", length {self.sequence_length}" if self.sequence_length is not None else ""
        precision = f", {self.precision}" if self.precision != self.runtime.precision else ""
        mode = f" · {self.mode}" if self.mode != "inference" else ""
        mode += f" in {self.processes} processes" if self.processes > 1 else ""
        weights = f", weights {self.model.weights.source}" if self.model.weights else ""
        return f"{self.model.model_id} · {self.hardware}{mode} · batch {self.batch_size}{length}{precision}{weights}"


def artifact_kind(cell: Cell) -> Artifact:
    """Return the kind of artifact that the cell's backend loads."""
    return cell.runtime.precisions[cell.precision]


CellKey = tuple[str, str, str, int | None, int | None, str | None, str, int, str | None]
"""Model id, hardware, fingerprint, batch size, sequence length, precision, mode, processes, hash of real weights."""


MAX_BATCH_SIZE = 65_536
MAX_SEQUENCE_LENGTH = 4_194_304
"""Larger numbers are typing errors, not workloads."""


CPU_RUNTIMES = ("cpu", "openvino", "onnxruntime")
"""Hardware names that every host is measured on by default."""
GPUS = ("cuda", "rocm", "mps")
"""Hardware names that a host is measured on by default where they are available."""
BATCH_SIZES = (1, 4)


def host_cells(
    models: Sequence[str], hardware: Sequence[str], batch_sizes: Sequence[int], inventory: Inventory | None = None
) -> tuple[Cell, ...]:
    """Return the cells to measure on a host; an empty list stands for the default, GPUs of the inventory included.

    Raises NotFound for an unknown model and what `plan_cells` raises.
    """
    devices = {name: None if inventory is None else inventory.device(name) for name in GPUS}
    found = [name for name, device in devices.items() if device is not None and device.available]
    return plan_cells(
        [resolve_model(name) for name in models] or model_set("small"),
        hardware or (*CPU_RUNTIMES, *found),
        batch_sizes or BATCH_SIZES,
    )


def plan_cells(
    models: Sequence[ModelSpec],
    hardware: Sequence[str],
    batch_sizes: Sequence[int],
    sequence_lengths: Sequence[int | None] = (None,),
    precisions: Sequence[str | None] = (None,),
    modes: Sequence[Mode] = ("inference",),
    processes: int = 1,
) -> tuple[Cell, ...]:
    """Return every combination once, the cells of a process together and its small ones first.

    A sequence length of None means each model's own, a precision of None each runtime's usual one. `processes` applies
    to training alone.

    Raises InvalidInput for an unknown hardware name or an empty list. Likewise for a batch size, length or number of
    processes out of range, and for several processes without training.
    """
    if not (models and hardware and batch_sizes and sequence_lengths and precisions and modes):
        raise InvalidInput("A benchmark needs at least one model, one hardware name and one batch size.")
    _require_sizes(batch_sizes, sequence_lengths)
    _require_processes(processes, modes)
    names = [runtime_for(name).name for name in hardware]
    # Small cells first, so that the process's peak memory so far is each cell's own.
    cells = (
        Cell(
            model,
            name,
            batch_size,
            sequence_length_for(model, length),
            precision or runtime_for(name).in_mode(mode).precision,
            mode,
            processes if mode == "training" else 1,
        )
        for model in models
        for name in names
        for mode in modes
        for precision in precisions
        for length in sorted(sequence_lengths, key=lambda n: n or 0)
        for batch_size in sorted(batch_sizes)
    )
    return tuple(dict.fromkeys(cells))


def _require_sizes(batch_sizes: Sequence[int], sequence_lengths: Sequence[int | None]) -> None:
    smallest, largest = min(batch_sizes), max(batch_sizes)
    longest = max(length or 0 for length in sequence_lengths)
    if smallest < 1:
        raise InvalidInput(f"A batch size must be at least 1, not {smallest}.")
    if largest > MAX_BATCH_SIZE:
        raise InvalidInput(f"A batch size can be at most {MAX_BATCH_SIZE:,}, not {largest:,}.")
    if longest > MAX_SEQUENCE_LENGTH:
        raise InvalidInput(f"A sequence length can be at most {MAX_SEQUENCE_LENGTH:,}, not {longest:,}.")


def _require_processes(processes: int, modes: Sequence[Mode]) -> None:
    if processes < 1:
        raise InvalidInput(f"A model is trained in at least 1 process, not {processes}.")
    if processes > 1 and "training" not in modes:
        raise InvalidInput(f"Only training runs in {processes} processes: ask for the mode training.")


def group_by_process(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Group cells that share a process: same model, hardware, mode, precision and loaded artifact.

    A group's small cells come first, because memory that a process once held may stay with it.

    A training cell has a process of its own, because training changes the loaded model.
    """
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        alone = cell if cell.mode == "training" else None
        # A graph of one pass is exported for one sequence length, while weights serve all.
        length = cell.sequence_length if cell.runtime.fixes_length else None
        found.setdefault((cell.model, cell.hardware, cell.mode, cell.precision, length, alone), []).append(cell)
    return [tuple(sorted(group, key=_item_count)) for group in found.values()]


def _item_count(cell: Cell) -> int:
    return cell.batch_size * (cell.sequence_length or 1)


def missing_cells(cells: Iterable[Cell], done: Iterable[CellKey], fingerprints: Mapping[str, str]) -> tuple[Cell, ...]:
    """Return the cells that `done` lacks under this host's `fingerprints` (by hardware name)."""
    known = set(done)
    return tuple(cell for cell in cells if cell_key(cell, fingerprints.get(cell.hardware, "")) not in known)


def host_fingerprints(inventory: Inventory) -> dict[str, str]:
    """Return the fingerprint of each available hardware name on this host."""
    threads = usable_cores()
    devices = zip(inventory.names, inventory.devices, strict=True)
    return {name: fingerprint_of(device, threads=threads) for name, device in devices if device.available}


def cell_key(cell: Cell, fingerprint: str) -> CellKey:
    """Return the identity of a cell: measurements with the same key are of the same cell."""
    return (
        cell.model.model_id,
        runtime_for(cell.hardware).hardware,
        fingerprint,
        cell.batch_size,
        cell.sequence_length,
        cell.precision,
        cell.mode,
        cell.processes,
        cell.weights_sha256,
    )


_MAX_SEGMENTS = 500
"""The runner's newest segments, about one per process: enough to show a cell's variation in a history of any length."""


def previous_medians(log: EventLog, commit: str | None) -> dict[CellKey, list[float]]:
    """Return medians in nanoseconds by cell, in order of time, from the log's newest benchmark processes.

    Runs of another commit than `commit` are left out, because other code may take another time.
    """
    newest = sorted(log.snapshot().beginning(SEGMENT_PREFIX).segments)[-_MAX_SEGMENTS:]
    of_others: set[str | None] = set()
    found: dict[CellKey, list[tuple[UUID, str | None, float]]] = {}
    for event in log.read(Snapshot(frozenset(newest)), types={"RunStarted", "ResultRecorded"}):
        if isinstance(event.payload, RunStarted):
            of_others |= {event.run_id} if event.payload.labels.get("commit") != commit else set()
            continue
        result = event.payload
        assert isinstance(result, ResultRecorded)
        if result.status == "ok" and result.fingerprint is not None and len(result.samples_ns) >= MIN_MEDIAN_SAMPLES:
            measured = event.event_id, event.run_id, median_ns(result.samples_ns)
            found.setdefault(result_key(result), []).append(measured)
    # A UUIDv7 begins with its time, so it sorts by it.
    return {
        key: [median for _, run_id, median in sorted(measured) if run_id not in of_others]
        for key, measured in found.items()
    }


def result_key(result: ResultRecorded | MeasuredSeries) -> CellKey:
    """Return the cell key of a benchmark result, or of a series of them."""
    return (
        result.model_id,
        result.hardware,
        result.fingerprint or "",
        result.batch_size,
        result.sequence_length,
        result.precision,
        result.mode,
        result.processes or 1,
        result.weights_sha256,
    )


def done_cells(log: EventLog, *, since: datetime | None = None) -> frozenset[CellKey]:
    """Return the cells with a valid benchmark result in this log. Failed cells are not among them, so they are tried
    again."""
    return frozenset(valid_results(log, since=since))


def valid_results(log: EventLog, *, since: datetime | None = None) -> dict[CellKey, ResultRecorded]:
    """Return the newest successful and verified benchmark result of each cell, from `since` on.

    Only the runner's own segments are read, so a long imported history costs nothing.
    """
    own = log.snapshot().beginning(SEGMENT_PREFIX)
    found: dict[CellKey, tuple[datetime, ResultRecorded]] = {}
    for event in log.read(own, types={"ResultRecorded"}):
        result = event.payload
        assert isinstance(result, ResultRecorded)
        if result.status != "ok" or result.fingerprint is None or result.environment.get("verified") is False:
            continue
        at = event.occurred_at or event.recorded_at
        key = result_key(result)
        if (since is None or at >= since) and (key not in found or at > found[key][0]):
            found[key] = at, result
    return {key: result for key, (_, result) in found.items()}
