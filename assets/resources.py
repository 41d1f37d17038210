"""One installation of the platform as a Dagster resource."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
from pydantic import Field

from accel_platform.errors import AccelError
from accel_platform.events import Event, EventLog
from accel_platform.settings import Settings
from accel_platform.webhook import WebhookRefused, give_up_text, post_webhook, store_message

_LONGEST_TEXT = 2000
"""Characters of a message to people; the event beside it has the rest."""

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

    @property
    def unsent(self) -> Path:
        """Folder of the messages that the webhook did not take."""
        return self.settings.home / "unsent"

    def notify(self, event: Event, text: str, *, warn: Callable[[str], object]) -> None:
        """POST an event and a line for people to the webhook, where one is configured.

        A webhook that does not take it is a warning and no error. What did not reach it is sent later by the sensor
        `unsent_messages`; what it refused is given up.
        """
        url = self.settings.webhook_url
        if url is None:
            return
        message = {"text": text[:_LONGEST_TEXT], **event.model_dump(mode="json")}
        try:
            post_webhook(url, message)
        except WebhookRefused as error:
            warn(give_up_text(error, message))
        except AccelError as error:
            store_message(self.unsent, str(event.event_id), message)
            warn(f"{error} It is sent later.")
