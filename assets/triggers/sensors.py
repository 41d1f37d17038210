"""Sensors: they start runs on files in the inbox, results of a commit or changes of the log, and keep failed runs."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Self

import dagster as dg
from dagster._core.remote_representation.code_location import is_implicit_asset_job_name
from pydantic import BaseModel, ValidationError

from accel_platform.analysis.regressions.commit_gate import unchecked_commits
from accel_platform.bench.plan.run_locks import any_running
from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.events import Event, Snapshot
from accel_platform.events.types import RunFailed
from accel_platform.hardware.host import host_id
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.reader import Reader
from accel_platform.webhook import resend_messages
from assets import metadata_previews
from assets.data_versions import last_snapshot_id, segments_of, snapshot_metadata
from assets.failures import reason_of
from assets.partitions import SAMPLES, SourceState, inbox_sources, legacy_sources, source_state
from assets.regressions import CommitConfig, commit_gate
from assets.resources import Installation
from assets.triggers.jobs import commit_line, history_line

FAILURE_SEGMENTS = "run-failed-"
"""Name prefix of the segments that hold failed runs."""

_LONGEST = 2000
"""Characters of a reason that are kept; the run has the rest."""
_PARTITION = "dagster/partition"


@dg.run_failure_sensor(
    monitor_all_code_locations=True,  # those of the hosts that measure, too
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Keeps each failed run as an event, and tells the webhook of ACCEL_WEBHOOK_URL where there is one.",
)
def failed_runs(context: dg.RunFailureSensorContext, accel: Installation) -> None:
    """Record each failed run once, however often the sensor sees it."""
    run = context.dagster_run
    job = _describe_job(run)
    payload = RunFailed(
        dagster_run_id=run.run_id,
        job=job,
        partition=run.tags.get(_PARTITION),
        failures={str(e.step_key): reason_of(e)[:_LONGEST] for e in context.get_step_failure_events() if e.step_key},
        reason=str(context.failure_event.message).replace(run.job_name, job)[:_LONGEST],
    )
    event = Event.of(payload, source="assets.run_failure_sensor", host_id=host_id())
    if accel.log.append([event], key=f"{FAILURE_SEGMENTS}{run.run_id}").new:
        why = "; ".join(f"{step}: {reason}" for step, reason in payload.failures.items()) or payload.reason
        accel.notify(event, f"{job} failed on {event.host_id}: {why}", warn=context.log.warning)


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Sends what did not reach the webhook of ACCEL_WEBHOOK_URL when it happened. Starts no run.",
)
def unsent_messages(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
    """Send the stored messages until one does not reach the webhook."""
    url = accel.settings.webhook_url
    if url is None:
        return dg.SensorResult(skip_reason="There is no webhook: ACCEL_WEBHOOK_URL names one.")
    sent, left = resend_messages(accel.unsent, url, warn=context.log.warning)
    if sent:
        context.log.info(f"sent late: {count_of(sent, 'message')}")
    why = f"Sent now: {sent}; left: {left}." if sent or left else "No message is stored."
    return dg.SensorResult(skip_reason=why)


def _describe_job(run: dg.DagsterRun) -> str:
    """Return a run's job; its assets where Dagster made one up for them."""
    if not is_implicit_asset_job_name(run.job_name):
        return run.job_name
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(assets) or "assets"


_Tick = Callable[Concatenate[dg.SensorEvaluationContext, ...], dg.SensorResult]


def _wait_if_unavailable(tick: _Tick) -> _Tick:
    """Have a tick that the log or its tables stop skip with the reason; the next one tries again."""

    @functools.wraps(tick)
    def look(context: dg.SensorEvaluationContext, *args: Any, **kwargs: Any) -> dg.SensorResult:
        try:
            return tick(context, *args, **kwargs)
        except AccelError as error:
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)

    return look


class _SensorState(BaseModel):
    """State of a sensor between ticks."""

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read the state from its cursor; an empty state without a readable one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()


class _SourceState(BaseModel):
    """One source at the last tick: its state then, and the state that a run was last asked to read."""

    digest: str
    taken: str | None = None


class _Cursor(_SensorState):
    """Cursor of the inbox. If it is lost everything is new; run keys name states, so no run is repeated."""

    sources: dict[str, _SourceState] = {}


@dg.sensor(
    job=history_line,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reads what is put into the inbox, once it has stood still from one look to the next and nothing is "
    "measured on this host.",
)
def inbox(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
    """Request a run for each source of the inbox that is new or changed, and no longer being written.

    It waits while this host measures, because work beside a measurement would be measured too.
    """
    before, now = _Cursor.of(context.cursor), _Cursor()
    measuring = any_running(accel.settings)
    requests: list[dg.RunRequest] = []
    waiting = held = 0
    for source, place in inbox_sources(accel.settings).items():
        state = _state_if_readable(context, source, place)
        if state is None:
            continue
        last = before.sources.get(source)
        taken = last.taken if last else None
        if last is None or last.digest != state.digest:
            waiting += 1
        elif taken != state.digest and measuring:
            held += 1
        elif taken != state.digest:
            taken = state.digest
            requests.append(dg.RunRequest(run_key=f"{source} {state.digest}", partition_key=source))
        now.sources[source] = _SourceState(digest=state.digest, taken=taken)
    known = set(context.instance.get_dynamic_partitions(str(legacy_sources.name)))
    new = sorted({SAMPLES, *now.sources} - known)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _skip_reason(accel, waiting, held),
        cursor=now.model_dump_json(),
        dynamic_partitions_requests=[legacy_sources.build_add_request(new)] if new else [],
    )


def _state_if_readable(context: dg.SensorEvaluationContext, source: str, place: Path) -> SourceState | None:
    try:
        return source_state(place)
    except OSError as error:
        context.log.warning(f"{source} cannot be looked at now: {error}")
        return None


def _skip_reason(accel: Installation, waiting: int, held: int) -> str:
    """Return why no run is requested: `waiting` sources may still be written, `held` wait for a measurement."""
    inbox_dir = accel.settings.inbox_dir
    if not inbox_dir.is_dir():
        return f"There is no inbox: old results put under {inbox_dir} are read from there."
    if held:
        return f"Something is being measured on this host; read after it: {count_of(held, 'source')} of the inbox."
    return (
        f"New, and perhaps still being written: {count_of(waiting, 'source')}."
        if waiting
        else "Nothing new in the inbox."
    )


_MAX_WAIT_S = 300
"""Seconds after which a log that never stands still is reported nevertheless."""
_REPEAT_S = 60
"""Seconds after which a report is repeated if `raw_events` did not follow; doubled each time up to _MAX_REPEAT_S."""
_MAX_REPEAT_S = 3600


class _LogCursor(_SensorState):
    """Cursor of `log_moved`: the log at the last tick, and as last reported, without the events of failed runs.

    If it is lost the log counts as new, and the second report costs one materialization.
    """

    seen: str | None = None
    """Id of the snapshot at the last tick."""
    reported: str | None = None
    """Id of the snapshot that was last reported."""
    again_after_s: float = _REPEAT_S
    again_at_s: float = 0.0
    moving_since_s: float | None = None
    """Time at which it was first seen to hold unreported events."""


@dg.sensor(
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares the log with what `raw_events` was made of, and says so where it holds more. Starts no run.",
)
@_wait_if_unavailable
def log_moved(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
    """Report `event_log` as updated once the log is quiet from one look to the next.

    It waits while this host measures, because work beside a measurement would be measured too. Failed runs cause no
    report; where `raw_events` does not follow, it is reported again, less and less often.
    """
    log, before = accel.log, _LogCursor.of(context.cursor)
    snapshot = log.snapshot()
    now = Snapshot(snapshot.segments - snapshot.beginning(FAILURE_SEGMENTS).segments)
    new = now.segments - segments_of(log, last_snapshot_id(context, "raw_events"))
    if not new:
        why = "The log is as it was taken in." if snapshot.segments else "The log is empty."
        return _quiet(why, _LogCursor(seen=now.id, reported=now.id))
    is_repeat = now.id == before.reported
    if is_repeat and time.time() < before.again_at_s:
        return _quiet("It was said already; `raw_events` will follow, or its run tells why not.", before)
    since_s = before.moving_since_s or time.time()
    watched = before.model_copy(update={"seen": now.id, "moving_since_s": since_s})
    if any_running(accel.settings):
        return _quiet("Something is being measured on this host: nothing is computed beside it.", watched)
    if not is_repeat and now.id != before.seen and time.time() - since_s < _MAX_WAIT_S:
        return _quiet(f"The log holds {count_of(len(new), 'new segment')}, and more may be coming.", watched)
    moved = dg.AssetMaterialization(
        "event_log",
        tags={"dagster/data_version": now.id},
        metadata={
            **snapshot_metadata(log.save_snapshot(snapshot)),
            "new_events": log.count_events(new),
            "segments": len(snapshot.segments),
            "preview": metadata_previews.table([{"new segment": name} for name in sorted(new)]),
        },
    )
    wait_s = min(2 * before.again_after_s, _MAX_REPEAT_S) if is_repeat else _REPEAT_S
    cursor = _LogCursor(seen=now.id, reported=now.id, again_after_s=wait_s, again_at_s=time.time() + wait_s)
    return dg.SensorResult(
        asset_events=[moved],
        skip_reason=f"Reported as `event_log`: {count_of(len(new), 'new segment')}.",
        cursor=cursor.model_dump_json(),
    )


def _quiet(why: str, watched: _LogCursor) -> dg.SensorResult:
    """Return the result of a tick without a report."""
    return dg.SensorResult(skip_reason=why, cursor=watched.model_dump_json())


@dg.sensor(
    job=commit_line,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Checks each commit against its baseline when runs labelled with it have ended and are in the tables.",
)
@_wait_if_unavailable
def new_commits(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
    """Request a run for each commit with results that no check has seen, once per state of the tables."""
    reader = Reader(accel.settings)
    try:
        snapshot_id = reader.snapshot_id
    except WarehouseEmpty:
        return dg.SensorResult(skip_reason="There are no tables yet.")
    if context.cursor == snapshot_id:
        return dg.SensorResult(skip_reason="The tables are as they were.", cursor=snapshot_id)
    requests = [
        dg.RunRequest(
            run_key=f"{commit.name} {commit.state}",
            run_config=dg.RunConfig(ops={commit_gate.node_def.name: CommitConfig(commit=commit.name)}),
            tags={"accel/commit": commit.name[:60]},
        )
        for commit in unchecked_commits(reader)
    ]
    skipped = None if requests else "Every commit that was measured is checked."
    return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=snapshot_id)
