"""Suspicion rules for results that arrive without a document, such as those posted to the service."""

from __future__ import annotations

from collections.abc import Sequence

from accel_platform.events import Event
from accel_platform.events.types import ResultRecorded
from migrations.normalize.records import Record, pointer_to
from migrations.suspicion.claims import labels_in
from migrations.suspicion.rules import apply_rules


def mark_suspicious(events: Sequence[Event]) -> list[Event]:
    """Return the events with the suspicions that their results would get as the rows of one imported document.

    Events other than results are returned unchanged.
    """
    places = [index for index, event in enumerate(events) if isinstance(event.payload, ResultRecorded)]
    records, own_words = [], []
    for row, index in enumerate(places):
        event = events[index]
        assert isinstance(event.payload, ResultRecorded)
        records.append(Record(event.payload, pointer_to(row), event.occurred_at, event.host_id))
        own_words.append({"environment": event.payload.environment, "original": event.payload.original})
    marked = list(events)
    for index, record in zip(places, apply_rules(records, labels_in(own_words)), strict=True):
        marked[index] = events[index].model_copy(update={"payload": record.result})
    return marked
