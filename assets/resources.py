"""One installation of the platform as a Dagster resource."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from pydantic import Field

from accel_platform.events import EventLog
from accel_platform.settings import Settings

REPOSITORY = Path(__file__).resolve().parent.parent
"""Where `workspace.yaml`, `dagster.yaml` and the sample files lie."""


class Installation(dg.ConfigurableResource[None]):
    """The state directory and, in it, the event log."""

    home: str | None = Field(default=None, description="State directory; default: $ACCEL_HOME, else ./.accel.")

    @property
    def settings(self) -> Settings:
        return Settings() if self.home is None else Settings(home=Path(self.home))

    @property
    def log(self) -> EventLog:
        return EventLog.open(self.settings)
