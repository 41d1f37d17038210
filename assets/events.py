"""Assets at the root of the graph: this host's hardware, its measurements, and the event log `raw_events`."""

import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import dagster as dg
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from accel_platform import pipeline_progress
from accel_platform.analysis.stats.medians import median_ns
from accel_platform.backends.detect import Inventory, detect
from accel_platform.bench.plan.plan import (
    BATCH_SIZES,
    Cell,
    host_cells,
    host_fingerprints,
    missing_cells,
    valid_results,
)
from accel_platform.bench.plan.run_options import effort_preset
from accel_platform.bench.plan.time_estimate import RemainingTime, estimate_times
from accel_platform.bench.run.recorder import RunContext
from accel_platform.bench.run.runner import measure_cells
from accel_platform.durations import format_duration
from accel_platform.events import EventLog, Snapshot
from accel_platform.events.types import ResultRecorded
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.publish import refresh, require_complete
from accel_platform.workloads.model_catalog import model_set
from assets import metadata_previews
from assets.automation import MEASURED_RECENTLY, ON_MOVED_LOG
from assets.data_versions import snapshot_metadata
from assets.failures import explain_failures
from assets.legacy_imports import legacy_history, reference_campaign
from assets.resources import Installation

_MODELS_DRAWN = 20


@dg.asset(
    group_name="observe", kinds={"python", "parquet"}, owners=["team:performance"], op_tags={"dagster/priority": "3"}
)
@explain_failures
def hardware_inventory(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Detect this host and its devices by asking the runtimes. A missing device is recorded with the reason."""
    inventory = detect()
    accel.log.append(inventory.events())
    devices = [
        {
            "hardware": name,
            "available": d.available,
            "device": d.name,
            "memory_mib": d.memory_mib,
            "why": d.reason,
        }
        for name, d in zip(inventory.names, inventory.devices, strict=True)
    ]
    available = [name for name, d in zip(inventory.names, inventory.devices, strict=True) if d.available]
    context.log.info(f"{inventory.host.cpu_model}: {', '.join(available) or 'no hardware that can be measured'}")
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(devices),
            "host_id": inventory.host_id,
            "available": ", ".join(available),
            "preview": metadata_previews.table(devices),
            "memory": metadata_previews.bars(
                [device for device in devices if device["available"]], "memory_mib", "hardware", title="Memory in MiB"
            ),
        }
    )


class MeasurementConfig(dg.Config):
    """Models, hardware and batch sizes to measure on this host."""

    models: list[str] = Field(
        default=[model.model_id for model in model_set("small")], description="Model keys, aliases or hub ids."
    )
    hardware: list[str] = Field(
        default=[], description="Hardware names; default: cpu, openvino and onnxruntime, and each kind of GPU found."
    )
    batch_sizes: list[int] = Field(default=list(BATCH_SIZES), description="Items per batch.")
    effort: str = Field(default="standard", description="How thoroughly: quick, standard or thorough.")

    def cells(self, inventory: Inventory | None = None) -> tuple[Cell, ...]:
        """Return all cells of this choice; GPUs that nobody named need an inventory.

        Raises NotFound or InvalidInput for an unknown name.
        """
        return host_cells(self.models, self.hardware, self.batch_sizes, inventory)


@dg.asset(
    deps=[hardware_inventory],
    group_name="observe",
    kinds={"pytorch", "openvino", "parquet"},
    owners=["team:performance"],
    op_tags={"dagster/priority": "2"},
)
@explain_failures
def measurements(
    context: dg.AssetExecutionContext, config: MeasurementConfig, accel: Installation
) -> dg.MaterializeResult[Any]:
    """Measure each model on each hardware at each batch size, and check outputs against the reference.

    Only cells missing in the log for this host's hardware, driver and runtime versions are measured; failed cells are
    tried again. A failing cell is an event with a reason and stops nothing.
    """
    config.cells()  # refused, where something is wrong, before detection takes seconds
    log, effort, inventory = accel.log, effort_preset(config.effort), detect()
    cells, earlier, fingerprints = config.cells(inventory), valid_results(log), host_fingerprints(inventory)
    lacking = missing_cells(cells, frozenset(earlier), fingerprints)
    context.log.info(f"{len(cells) - len(lacking)} of {len(cells)} cells are in the log, {len(lacking)} to measure")
    remaining = RemainingTime(estimate_times(lacking, earlier, fingerprints, effort.sampling))

    def show(finished: Collection[Cell]) -> None:
        remaining_s = remaining.after(finished, time.monotonic())
        pipeline_progress.update(accel.settings, cells_done=len(finished), cells=len(lacking), remaining_s=remaining_s)
        if 0 < len(finished) < len(lacking):
            context.log.info(
                f"{len(finished)} of {count_of(len(lacking), 'cell')}, about {format_duration(remaining_s)} left"
            )

    def publish(finished: Collection[Cell]) -> None:
        show(finished)
        # Between two workers this disturbs no measurement, and a running service answers from what is there.
        refresh(accel.settings)

    if lacking:
        show(())
    run = RunContext(accel.settings, log, inventory, effort, report=context.log.info)
    summary = measure_cells(lacking, run, on_stored=publish)
    pipeline_progress.update(accel.settings, cells_done=None, cells=None, remaining_s=None)
    for hardware, reason in summary.unavailable.items():
        context.log.warning(f"{hardware} is unavailable: {reason}")
    measured = [_row(result) for result in summary.results]
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(cells),
            "in_the_log_before": len(cells) - len(lacking),
            "measured": summary.ok,
            "failed": summary.failed,
            "unavailable": dg.MetadataValue.json(summary.unavailable),
            "preview": metadata_previews.table(
                measured, empty="Nothing was measured this time: all of it was in the log."
            ),
            "latencies": _latency_chart(measured),
        }
    )


def _row(result: ResultRecorded) -> dict[str, Any]:
    return {
        "model": result.model_id,
        "hardware": result.hardware,
        "batch_size": result.batch_size,
        "status": result.status,
        "median_ms": median_ns(result.samples_ns) / 1e6 if result.samples_ns else None,
        "samples": len(result.samples_ns),
        "memory_peak_mib": result.memory_peak_mib,
        "noisy": result.noisy,
        "reason": result.reason,
    }


def _latency_chart(measured: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    import altair as alt

    return metadata_previews.chart(
        alt.Chart(
            {"values": metadata_previews.among_first(measured, "model", _MODELS_DRAWN)},
            title="Measured this time: median of one batch",
        )
        .mark_bar()
        .encode(
            x=alt.X("median_ms:Q", title="milliseconds"),
            y=alt.Y("hardware:N", title=None),
            color=alt.Color("hardware:N", legend=None),
            row=alt.Row("model:N", title=None),
            column=alt.Column("batch_size:N", title="batch size"),
        )
        .properties(width=260)
    )


event_log = dg.AssetSpec(
    "event_log",
    group_name="observe",
    kinds={"parquet"},
    owners=["team:performance"],
    description="The event log, whoever appends to it: this graph, the command line, CI, another host. The sensor "
    "`log_moved` says when it holds something new; no run makes it.",
)


@dg.asset(
    deps=[event_log, hardware_inventory, measurements, legacy_history, reference_campaign],
    group_name="observe",
    kinds={"parquet"},
    owners=["team:performance"],
    automation_condition=ON_MOVED_LOG,
    freshness_policy=MEASURED_RECENTLY,
)
@explain_failures
def raw_events(context: dg.AssetExecutionContext, accel: Installation) -> dg.MaterializeResult[Any]:
    """Take the whole log at one snapshot: everything downstream is built from it."""
    log = accel.log
    snapshot = log.snapshot()
    if not snapshot.segments:
        raise dg.Failure("The event log is empty: nothing was observed, measured or imported.")
    require_complete(accel.settings)
    log.save_snapshot(snapshot)
    counts = _count_types(log, snapshot)
    total = sum(counts.values())
    rows = [{"type": kind, "events": number} for kind, number in counts.most_common()]
    context.log.info(
        f"{count_of(total, 'event')} in {count_of(len(snapshot.segments), 'segment')}, snapshot {snapshot.id[:12]}"
    )
    return dg.MaterializeResult(
        data_version=dg.DataVersion(snapshot.id),
        metadata={
            **snapshot_metadata(snapshot.id),
            "dagster/row_count": total,
            "segments": len(snapshot.segments),
            "location": log.location,
            "preview": metadata_previews.table(rows),
            "types": _type_chart(rows),
        },
    )


def _count_types(log: EventLog, snapshot: Snapshot) -> Counter[str]:
    """Count events per type, from that one column of the stored segments."""
    counts: Counter[str] = Counter()
    for source in log.sources(snapshot.segments):
        columns = ["type"] if source.segments is None else ["type", "segment"]
        stored = pq.read_table(source.path, columns=columns, partitioning=None)
        if source.segments is not None:
            stored = stored.filter(pc.field("segment").isin(sorted(source.segments)))
        for entry in stored["type"].value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts


def _type_chart(rows: list[dict[str, Any]]) -> dg.MarkdownMetadataValue:
    import altair as alt

    return metadata_previews.chart(
        alt.Chart({"values": rows}, title="Events by type")
        .mark_bar()
        .encode(x=alt.X("events:Q").scale(type="symlog"), y=alt.Y("type:N", title=None).sort("-x"))
        .properties(width=480)
    )
