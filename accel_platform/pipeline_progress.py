"""Progress of `accel run` on an installation: a small file that the pipeline writes and the service shows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, Field, ValidationError, computed_field

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.durations import format_duration
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of


class PipelineProgress(BaseModel):
    """Stage of a pipeline that runs, was stopped or failed."""

    state: Literal["running", "stopped", "failed"] = Field(
        description="`stopped`: its process is gone; the same `accel run` continues. `failed`: see `reason`."
    )
    stage: str = Field(examples=["Measuring what the log lacks"], description="What the pipeline does, in words.")
    stage_number: int = Field(description="Number of the stage, from 1.")
    stages: int = Field(description="Number of all stages.")
    cells_done: int | None = Field(default=None, description="Measured cells; null outside measuring.")
    cells: int | None = Field(default=None, description="Cells to measure; null outside measuring.")
    remaining_s: float | None = Field(
        default=None, description="Estimated seconds until the last cell is measured; null outside measuring."
    )
    reason: str | None = Field(default=None, description="Why it failed; null where it did not.")
    started_at: datetime
    updated_at: datetime = Field(description="When the progress was last written.")
    process: str = Field(description="Number and start time of the process that works on it.")

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def message(self) -> str:
        """Progress in one line, for people."""
        if self.state == "failed":
            return f"The pipeline failed: {self.reason}"
        if self.state == "stopped":
            return "Measuring was stopped; `accel run` continues it"
        if self.cells is None:
            return f"{self.stage} (step {self.stage_number} of {self.stages})"
        left = f", about {format_duration(self.remaining_s)} left" if self.remaining_s is not None else ""
        return f"Measuring this host: {self.cells_done} of {count_of(self.cells, 'cell')}{left}"


def begin(settings: Settings, *, stages: int, stage: str) -> None:
    """Record that this process begins a pipeline."""
    now = datetime.now(UTC)
    progress = PipelineProgress(
        state="running",
        stage=stage,
        stage_number=1,
        stages=stages,
        started_at=now,
        updated_at=now,
        process=process_identity(psutil.Process()),
    )
    make_directory(settings.home)
    _write(settings, progress)


def update(settings: Settings, **changes: Any) -> None:
    """Change fields of this process's pipeline; nothing happens where this process runs none."""
    progress = _read(settings)
    if progress is not None and progress.process == process_identity(psutil.Process()):
        _write(settings, progress.model_copy(update=changes | {"updated_at": datetime.now(UTC)}))


def finish(settings: Settings) -> None:
    """Remove the record: everything that was asked for is measured, checked and trained."""
    _path(settings).unlink(missing_ok=True)


def read(settings: Settings) -> PipelineProgress | None:
    """Return the progress; None where no pipeline ran yet and after one that finished."""
    progress = _read(settings)
    if progress is not None and progress.state == "running" and not is_alive(progress.process):
        return progress.model_copy(update={"state": "stopped"})
    return progress


def process_identity(process: psutil.Process) -> str:
    """Return a process's number and start time, because numbers are reused."""
    return f"{process.pid} {process.create_time():.2f}"


def process_number(identity: str) -> int:
    return int(identity.partition(" ")[0])


def is_alive(identity: str) -> bool:
    """Return whether the process of an identity still exists."""
    try:
        return process_identity(psutil.Process(process_number(identity))) == identity
    except psutil.NoSuchProcess:
        return False


def _path(settings: Settings) -> Path:
    return settings.home / "pipeline.json"


def _read(settings: Settings) -> PipelineProgress | None:
    try:
        return PipelineProgress.model_validate_json(_path(settings).read_bytes())
    except (FileNotFoundError, ValidationError):
        # A file of another version says nothing about this one's pipeline.
        return None


def _write(settings: Settings, progress: PipelineProgress) -> None:
    write_durably(_path(settings), progress.model_dump_json(exclude={"message"}))
