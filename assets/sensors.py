"""What starts runs when something arrives: the inbox of old results. What runs is said in `jobs.py`."""

from pathlib import Path
from typing import Self

import dagster as dg
from pydantic import BaseModel, ValidationError

from assets.jobs import history_line
from assets.partitions import SAMPLES, State, in_inbox, legacy_sources, state_of
from assets.resources import Installation


class _Seen(BaseModel):
    """One source at the last tick: its state then, and the state that a run was last asked to read."""

    digest: str
    taken: str | None = None


class _Cursor(BaseModel):
    sources: dict[str, _Seen] = {}

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Where there is none, or none that can be read, everything is new; runs that were asked for are not repeated,
        for their keys name the state."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()


@dg.sensor(
    job=history_line,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reads what is put into the inbox, once it has stood still from one look to the next.",
)
def inbox(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
    """A run for each source of the inbox that is new or has changed, and is no longer being written."""
    before, now = _Cursor.of(context.cursor), _Cursor()
    requests: list[dg.RunRequest] = []
    waiting = 0
    for source, place in in_inbox(accel.settings).items():
        state = _still(context, source, place)
        if state is None:
            continue
        last = before.sources.get(source)
        taken = last.taken if last else None
        if last is None or last.digest != state.digest:
            waiting += 1
        elif taken != state.digest:
            taken = state.digest
            requests.append(dg.RunRequest(run_key=f"{source} {state.digest}", partition_key=source))
        now.sources[source] = _Seen(digest=state.digest, taken=taken)
    known = set(context.instance.get_dynamic_partitions(str(legacy_sources.name)))
    new = sorted({SAMPLES, *now.sources} - known)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _nothing(accel, waiting),
        cursor=now.model_dump_json(),
        dynamic_partitions_requests=[legacy_sources.build_add_request(new)] if new else [],
    )


def _still(context: dg.SensorEvaluationContext, source: str, place: Path) -> State | None:
    try:
        return state_of(place)
    except OSError as error:
        context.log.warning(f"{source} cannot be looked at now: {error}")
        return None


def _nothing(accel: Installation, waiting: int) -> str:
    inbox_dir = accel.settings.inbox_dir
    if not inbox_dir.is_dir():
        return f"There is no inbox: old results put under {inbox_dir} are read from there."
    return f"{waiting} sources are new and may still be written." if waiting else "Nothing new in the inbox."
