"""One installation of the platform as a Dagster resource."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from pydantic import Field

from accel_platform.events import EventLog
from accel_platform.settings import Settings

_PACKAGE_DATA = Path(__file__).resolve().with_name("data")
DATA_DIR = _PACKAGE_DATA if _PACKAGE_DATA.is_dir() else _PACKAGE_DATA.parents[1]
"""Folder of `workspace.yaml`, `dagster.yaml` and `samples`: package data of a wheel, else the root of the clone."""


class Installation(dg.ConfigurableResource[None]):
    """The state directory and, in it, the event log."""

    home: str | None = Field(default=None, description="State directory; default: $ACCEL_HOME, else ./.accel.")

    @property
    def settings(self) -> Settings:
        return Settings() if self.home is None else Settings(home=Path(self.home))

    @property
    def log(self) -> EventLog:
        return EventLog.open(self.settings)
