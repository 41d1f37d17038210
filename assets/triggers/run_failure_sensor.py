"""Sensor for failed runs: an event of each and, where configured, a webhook message."""

import dagster as dg
from dagster._core.remote_representation.code_location import is_implicit_asset_job_name

from accel_platform.events import Event
from accel_platform.events.types import RunFailed
from accel_platform.hardware.host import host_id
from assets.failures import reason_of
from assets.resources import Installation

SEGMENTS = "run-failed-"
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
    if accel.log.append([event], key=f"{SEGMENTS}{run.run_id}").new:
        why = "; ".join(f"{step}: {reason}" for step, reason in payload.failures.items()) or payload.reason
        accel.notify(event, f"{job} failed on {event.host_id}: {why}", warn=context.log.warning)


def _describe_job(run: dg.DagsterRun) -> str:
    """Return a run's job; its assets where Dagster made one up for them."""
    if not is_implicit_asset_job_name(run.job_name):
        return run.job_name
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(assets) or "assets"
