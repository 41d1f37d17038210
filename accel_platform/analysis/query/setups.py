"""Software setups behind imported figures in words, and names that distinguish the runtimes of one device.

A *setup* is what an import states about its software: versions, settings and threads. A *statement* is one of these.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from accel_platform.backend_names import canonical_backend
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.reader import Reader

# Any result of a setup tells it, because the fingerprint is of just these statements.
_SETUPS = """
WITH one AS (
    SELECT fingerprint AS setup, min(backend) AS backend, min(event_id) AS event_id FROM results
    WHERE provenance NOT IN ('measured', 'emulated') AND list_contains($setups, fingerprint)
    GROUP BY fingerprint
)
SELECT one.setup, one.backend, json_extract(e.payload, '$.environment') AS environment
FROM events AS e JOIN one ON one.event_id = e.event_id
WHERE e.event_id IN (SELECT event_id FROM one)
"""
_UNKNOWN_VERSION = "unknown version"
_SELF_EXPLAINING = ("layout", "compiler", "runtime")
"""Settings whose value is clear without their name."""
_ELSEWHERE = ("devices",)
"""Settings that are not repeated, because the device's name states them."""


def read_setups(reader: Reader, setups: Collection[str]) -> dict[str, list[str]]:
    """Return the statements of each setup, by its fingerprint; setups without any are left out."""
    if not setups:
        return {}
    rows = reader.rows(_SETUPS, {"setups": sorted(setups)})
    found = {row["setup"]: _statements(json.loads(row["environment"] or "{}"), row["backend"]) for row in rows}
    return {setup: statements for setup, statements in found.items() if statements}


def _statements(environment: Mapping[str, Any], backend: str | None) -> list[str]:
    """Return the statements of an environment: its versions, then its settings."""
    software = [
        f"{name} {version}" if version != _UNKNOWN_VERSION else name
        for name, version in environment.items()
        if isinstance(version, str) and (version != _UNKNOWN_VERSION or canonical_backend(name) != backend)
    ]
    settings = environment.get("settings")
    stated = settings.items() if isinstance(settings, Mapping) else ()
    return software + [
        str(value) if name in _SELF_EXPLAINING else f"{name.replace('_', ' ')} {value}"
        for name, value in stated
        if name not in _ELSEWHERE and isinstance(value, str | int | float)
    ]


def with_distinct_runtimes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with names for what ran them, where that is not clear from the hardware.

    `engine` is the backend where a hardware name has several, `settings` what tells an engine's setups on a device
    apart, and `runtime` both. They are None where there is nothing to tell apart.
    """
    engines: dict[Any, set[Any]] = {}
    setups: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        engines.setdefault(row.get("hardware"), set()).add(row.get("backend"))
        setups.setdefault((*_place(row), row.get("backend")), set()).add(_setup(row))
    in_several_setups = [row for row in rows if len(setups[*_place(row), row.get("backend")]) > 1]
    common = _common_statements(in_several_setups)
    texts = {(*_place(row), row.get("backend"), _setup(row)): _settings(row, common) for row in in_several_setups}
    shared = _shared_texts(texts)
    named = []
    for row in rows:
        place, backend = _place(row), row.get("backend")
        engine = backend if len(engines[row.get("hardware")]) > 1 else None
        settings = texts.get((*place, backend, _setup(row)))
        if (*place, backend, settings) in shared and row.get("setup"):
            settings = ", ".join(filter(None, [settings, f"setup {row['setup'][-8:]}"]))
        runtime = ", ".join(filter(None, [engine, settings])) or None
        named.append({**row, "engine": engine, "settings": settings, "runtime": runtime})
    return named


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields that identify the device of a row."""
    return row.get("hardware"), row.get("choice"), row.get("device_id"), row.get("device_name")


def _setup(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("setup"), row.get("threads")


def _all_statements(row: Mapping[str, Any]) -> list[str]:
    threads = row.get("threads")
    counted = [] if threads is None else [count_of(threads, "thread")]
    return [*(row.get("software") or ()), *counted]


def _common_statements(rows: Iterable[Mapping[str, Any]]) -> dict[Any, set[str]]:
    """Return by backend the statements that all its setups share, which distinguish none of them."""
    common: dict[Any, set[str]] = {}
    for row in rows:
        stated = set(_all_statements(row))
        if stated:
            common[row.get("backend")] = common.get(row.get("backend"), stated) & stated
    return common


def _settings(row: Mapping[str, Any], common: Mapping[Any, set[str]]) -> str | None:
    """Return a row's statements beyond the common ones in words; None if there are none to name."""
    distinguishing = [text for text in _all_statements(row) if text not in common.get(row.get("backend"), ())]
    own = row.get("provenance") in ("measured", "emulated")
    return ", ".join(distinguishing) or (None if own or row.get("software") else "software not stated")


def _shared_texts(texts: Mapping[tuple[Any, ...], str | None]) -> set[tuple[Any, ...]]:
    """Return the keys (place, backend, text) that several setups have."""
    seen: set[tuple[Any, ...]] = set()
    shared: set[tuple[Any, ...]] = set()
    for (*engine, _), text in texts.items():
        key = (*engine, text)
        (shared if key in seen else seen).add(key)
    return shared
