"""Query parameters of the routes that read, problem documents, and the answers of probes."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from accel_platform.analysis.query.filters import (
    MAX_NAMES,
    Selection,
    canonical_hardware_name,
    equality_condition,
    reject_choices,
    require_date,
    utc_instant,
)
from accel_platform.errors import InvalidInput
from accel_platform.pipeline_progress import PipelineProgress
from predictor.schemas.rows import SnapshotId


class PageQuery(BaseModel):
    """Size and start of a page; an unknown parameter is an error."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=2000, description="`next_cursor` of the page before.")


class ResultsQuery(Selection, PageQuery):
    """Filters and page of results."""


Name = Annotated[str | None, Field(default=None, max_length=200)]
HardwareName = Annotated[str | None, AfterValidator(lambda name: name and canonical_hardware_name(name))]
"""A hardware name as it is recorded: openvino for OpenVINO."""


def selection_of(model: str | None, hardware: str | None, mode: str | None) -> Selection:
    """Return a selection of at most one model, hardware name and mode. Raises InvalidInput for a device's name."""
    selection = Selection(model=(model,) if model else (), hardware=(hardware,) if hardware else (), mode=mode)
    if selection.hardware_devices:
        raise InvalidInput(
            f"This is told by hardware name, and {hardware!r} is a device: ask for its hardware name, such as cuda."
        )
    return selection


class MatrixQuery(PageQuery):
    """Filters and page of the matrix."""

    model: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description=Selection.model_fields["model"].description
    )
    hardware: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description=Selection.model_fields["hardware"].description
    )
    mode: Name = Field(default=None, max_length=200, description="inference, generation or training.")
    state: Literal["compatible", "failed"] | None = None
    limit: int = Field(default=1000, ge=1, le=10_000)

    def selection(self) -> Selection:
        """Return the names that it filters by."""
        return Selection(model=self.model, hardware=self.hardware, mode=self.mode)

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return an SQL condition over the matrix (as `r`), and its values."""
        reject_choices(self.hardware)
        condition, values = self.selection().where()
        if self.state is None:
            return condition, values
        return f"{condition} AND r.state = $state", {**values, "state": self.state}


class ModelsQuery(PageQuery):
    """Filters and page of models."""

    family: Name
    modality: Name


class DevicesQuery(PageQuery):
    """Filters and page of devices."""

    host_id: Name
    hardware: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description=Selection.model_fields["hardware"].description
    )
    available: bool | None = None


class RunsQuery(PageQuery):
    """Filters and page of runs."""

    kind: Name = Field(
        default=None, max_length=200, description="benchmark or coverage; null where only results name it."
    )
    status: Name
    host_id: Name
    commit: Name


class RegressionsQuery(PageQuery):
    """Filters and page of regressions."""

    model: Name = Field(default=None, max_length=200, description="A model's key, alias or hub id.")
    hardware: HardwareName = Field(
        default=None, max_length=200, description="A hardware name: cuda, or with a choice openvino:gpu.1."
    )
    mode: Name
    state: Literal["open", "accepted", "rejected", "gone"] | None = None
    direction: Literal["regressed", "improved"] | None = None


class CoverageQuery(PageQuery):
    """Filters and page of architectures."""

    model_type: Name
    family: Name
    category: Name
    hardware: HardwareName = Field(default=None, max_length=200, description="A hardware name, such as cuda.")
    status: Name


Moment = Annotated[date | datetime | None, BeforeValidator(require_date)]


class EventsQuery(PageQuery):
    """Filters and page of events."""

    type: Name = Field(default=None, max_length=200, description="Such as ResultRecorded.")
    run_id: Name
    host_id: Name
    source: Name
    since: Moment = Field(default=None, description="Recorded at or after this time.")
    until: Moment = Field(default=None, description="Recorded before this time.")

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return an SQL condition over the events (as `r`), and its values."""
        condition, values = equality_condition(**self.names())
        for name, sign in (("since", ">="), ("until", "<")):
            if (moment := getattr(self, name)) is not None:
                condition += f" AND r.recorded_at {sign} ${name}"
                values[name] = utc_instant(moment)
        return condition, values

    def names(self) -> dict[str, str | None]:
        """Return the names that it filters by, None for those unset."""
        return self.model_dump(include={"type", "run_id", "host_id", "source"})


class Health(BaseModel):
    """State of a service that answers, and the data behind its answers."""

    status: str = Field(description="Always ok: it answers.", examples=["ok"])
    version: str = Field(description="Version of the platform.")
    snapshot_id: SnapshotId
    predictor_id: str | None = Field(description="Predictor in service; null where there is none.")
    predictor_missing: str | None = Field(description="Why there is no predictor; null where there is one.")
    log_problem: str | None = Field(
        description="What the log had lost when the service started, and the way out; null where it is whole. The "
        "tables in service still hold it."
    )
    knowledge_problems: dict[str, str] = Field(
        description="Shipped knowledge packs that could not be used when the service started, each with its reason."
    )
    results: int = Field(description="Rows of the results table.")
    cells: int = Field(description="Distinct configurations that answers may rest on.")
    pipeline: PipelineProgress | None = Field(
        description="The `accel run` that measures this host, while it runs, or was stopped or failed; else null."
    )


class Ready(BaseModel):
    """State of a service that is ready for queries."""

    status: str = Field(description="Always ready: it takes queries.", examples=["ready"])
    snapshot_id: SnapshotId


class FieldProblem(BaseModel):
    """Problem with one field of the input."""

    field: str = Field(description="Its path, such as `hardware.0`; `body` for the body as a whole.")
    message: str = Field(description="What is wrong with it.")


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(extra="forbid")
    type: str = Field(description="What kind of problem it is, for programs.", examples=["urn:accel:problem:not-found"])
    title: str = Field(description="What kind of problem it is, in words.")
    status: int = Field(description="Status code of the response.")
    detail: str = Field(description="What went wrong and what to do.")
    instance: str = Field(description="The path that was asked for.")
    request_id: str | None = Field(default=None, description="As in the header X-Request-ID and the service's log.")
    errors: list[FieldProblem] | None = Field(default=None, description="For invalid input, one per error.")
