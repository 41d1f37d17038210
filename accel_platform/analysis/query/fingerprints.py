"""What fingerprints of results stand for: driver, versions and threads, as the runs saw them. Nothing is judged."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from accel_platform.warehouse.reader import Reader

_DEVICES = """
SELECT run_id, payload->>'$.hardware' AS hardware, payload->>'$.choice' AS choice, payload->>'$.driver' AS driver,
    payload->'$.runtime_versions' AS versions
FROM events
WHERE type = 'DeviceObserved' AND list_contains($runs, run_id)
"""
Seen = dict[tuple[str, str, str | None], dict[str, Any]]
"""By run, hardware name and choice: the driver and the versions of the runtime's packages."""


def devices_seen(reader: Reader, run_ids: Collection[str]) -> Seen:
    """What these runs saw of their devices."""
    found: Seen = {}
    for row in reader.rows(_DEVICES, {"runs": list(run_ids)}):
        versions = json.loads(row["versions"] or "{}")
        found[row["run_id"], row["hardware"], row["choice"]] = {"driver": row["driver"], **versions}
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names under which two hold different things, in order."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
