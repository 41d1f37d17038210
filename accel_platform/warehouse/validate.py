"""Validation of log and tables, and the repairs that are safe.

It checks the rules over every row, the tables against the log, references between tables, and leftovers of killed
writers. Imported claims are never changed, and acknowledged events are never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from accel_platform.errors import AccelError, one_line
from accel_platform.events import Event, EventLog, Snapshot, integrity
from accel_platform.events.integrity import summarize
from accel_platform.events.log import PACKS, SEGMENTS, SegmentSource, pack_key, parquet_names, segment_key
from accel_platform.events.types import ModelDescribed
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of
from accel_platform.warehouse import build_layer, publish
from accel_platform.warehouse.disk_use import find_leftovers, remove_leftovers
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import PER_EVENT, TABLES, Projection, WarehouseDamaged, current, read_error
from accel_platform.warehouse.rules import RULES

Describe = Callable[[str], Callable[[], ModelDescribed] | None]
"""Function that returns, for a model in the catalog, a function that describes it; None for any other."""

_EXAMPLES = 5

_SET_ASIDE = """
SELECT rule, coalesce(source_path, run_id, source) AS origin, count(*) AS rows
FROM (SELECT unnest(broken_rules) AS rule, source_path, run_id, source FROM result_rows WHERE broken_rules IS NOT NULL)
GROUP BY ALL ORDER BY rule, rows DESC, origin
"""
_DIFFERENT = """
WITH log AS (SELECT event_id, hash(type, payload, samples_ns) AS content FROM {stored}),
tables AS (SELECT event_id, hash(type, payload, samples_ns) AS content FROM events)
SELECT count(*) FROM ((FROM log EXCEPT FROM tables) UNION ALL (FROM tables EXCEPT FROM log))
"""
_MISCOUNTED = """
SELECT l.source_path || ': ' || l.records || ' in the ledger, ' || count(e.event_id) || ' in the log' AS example
FROM import_ledger AS l
LEFT JOIN events AS e ON e.causation_id = l.event_id AND e.type = 'ResultRecorded'
GROUP BY l.event_id, l.source_path, l.records
HAVING l.records <> count(e.event_id)
ORDER BY ALL
"""
_OF_NO_RESULT = """
SELECT rule || ' of ' || result_id AS example FROM (
    SELECT rule, result_id FROM suspicions UNION ALL SELECT rule, result_id FROM suspicion_overrides)
WHERE result_id NOT IN (SELECT event_id FROM result_rows)
ORDER BY ALL
"""
# Models that only knowledge packs name are found in the catalog on demand.
_UNDESCRIBED = f"""
SELECT model_id, bool_or(r.provenance IN ('measured', 'emulated')) AS measured
FROM models JOIN results AS r USING (model_id)
WHERE architecture IS NULL AND NOT starts_with(coalesce(r.source, ''), '{SOURCE_PREFIX}')
GROUP BY model_id
ORDER BY model_id
"""


@dataclass(frozen=True)
class RuleVerdict:
    """Verdict of one rule over every result: rows checked, breaking rows set aside, breaking rows in service."""

    rule: str
    rows: int
    set_aside: int
    in_service: int
    origins: dict[str, int]
    """Rows set aside by document or run of origin, the most frequent first."""


@dataclass(frozen=True)
class Finding:
    """A problem of log or tables, or a note on them. `repair` is the one safe repair, None if there is none."""

    name: str
    count: int
    what: str
    repair: str | None = None


@dataclass(frozen=True)
class Validation:
    """Findings and notes that remain after the repairs made."""

    snapshot_id: str | None
    rules: tuple[RuleVerdict, ...]
    findings: tuple[Finding, ...]
    """Problems."""
    repaired: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()
    """Normal states that a repair improves."""


def validate(
    settings: Settings, describe: Describe, *, fix: bool = False, copy: integrity.LogCopy | None = None
) -> Validation:
    """Validate everything; with `fix`, make the safe repairs and validate again.

    Lost segments of the log are restored from `copy`, a back-up, if one is given. Raises LogUnavailable if the log
    cannot be listed or written.
    """
    found = _inspect(settings, describe)
    if not fix or not any(finding.repair or copy for finding in (*found.findings, *found.notes)):
        return found
    done = tuple(_repair(settings, describe, found.findings, copy))
    return replace(_inspect(settings, describe), repaired=done)


_LOG_INCOMPLETE = frozenset({"segments_damaged", "segments_unreadable", "segments_gone"})
"""Findings that keep the log from being compared with the tables."""
_OUTDATED = Finding("tables_of_another_version", 1, "another version of the platform made the tables", "rebuild")


def _inspect(settings: Settings, describe: Describe) -> Validation:
    log = EventLog.open(settings)
    snapshot = log.snapshot()
    findings = [*_of_log(log, snapshot), *_leftovers(settings)]
    readable = not any(finding.name in _LOG_INCOMPLETE for finding in findings)
    projection = None
    try:
        projection = current(settings)
        if projection is None:
            if snapshot.segments:
                findings.append(Finding("tables_missing", 1, "there are events and no tables", "rebuild"))
            return Validation(None, (), tuple(findings))
        with projection.open() as con, interruptible(con):
            _read_all(con, projection.directory)
            if readable:
                findings += _against_log(con, projection, log, snapshot)
            findings += _references(con)
            # A run describes its models before it measures them. Imports name models without describing them.
            of_runs, of_imports = _undescribed_models(con, describe)
            findings += of_runs
            set_aside = con.execute(_SET_ASIDE).fetchall()
        verdicts = _verdicts(projection, set_aside)
    except WarehouseDamaged as damage:
        outdated = projection is not None and projection.schema_id != build_layer.schema_id()
        findings.append(_OUTDATED if outdated else Finding("tables_damaged", 1, str(damage), "rebuild"))
        return Validation(None, (), tuple(findings))
    in_service = sum(verdict.in_service for verdict in verdicts)
    if in_service:
        rules = ", ".join(verdict.rule for verdict in verdicts if verdict.in_service)
        findings.append(Finding("rules_broken", in_service, f"rows in service break {rules}", "rebuild"))
    return Validation(projection.snapshot_id, verdicts, tuple(findings), notes=of_imports)


def _of_log(log: EventLog, snapshot: Snapshot) -> Iterator[Finding]:
    damaged = _damaged(log)
    if damaged:
        what = f"{summarize([str(damage) for damage in damaged])}: not what was written"
        yield Finding("segments_damaged", len(damaged), what, "set aside")
    if bad := log.saved.damaged():
        what = f"{summarize(bad)}: going back to these is not possible any more"
        yield Finding("snapshots_damaged", len(bad), what)
    whole = sorted(snapshot.segments - {name for damage in damaged for name in damage.segments})
    broken = [problem for name in whole if (problem := _problem(log, name)) is not None]
    if broken:
        yield Finding(
            "segments_unreadable", len(broken), f"{summarize(broken, _EXAMPLES)}: written by a newer version?"
        )
    if gone := integrity.lost_segments(log):
        what = (
            f"{summarize(sorted(gone), _EXAMPLES)}: the log has lost them; `--fix --from BACKUP` brings them back, "
            "`accel db rebuild --forget NAMES` gives them up"
        )
        yield Finding("segments_gone", len(gone), what)


def _damaged(log: EventLog) -> list[integrity.Damage]:
    """Check every file of events that the log holds, those without a manifest too."""
    keys = [
        *map(segment_key, parquet_names(log.store.keys(SEGMENTS))),
        *map(pack_key, parquet_names(log.store.keys(PACKS))),
    ]
    in_packs = frozenset[str]().union(*log.packs().values())
    emptied = {segment_key(name) for name in in_packs}  # earlier versions of the platform left empty files
    sources = [SegmentSource(log.store.local_path(key), key) for key in sorted(keys)]
    return integrity.find_damage(log, [s for s in sources if s.key not in emptied or s.path.stat().st_size])


def _problem(log: EventLog, segment: str) -> str | None:
    """Return why a segment cannot be read; None if every event of it can."""
    try:
        for _ in log.read(Snapshot(frozenset({segment}))):
            pass
    except (AccelError, OSError, ValueError, KeyError) as error:
        return f"{segment} ({one_line(error)[:140]})"
    return None


def _leftovers(settings: Settings) -> Iterator[Finding]:
    found = [str(path) for path in find_leftovers(settings)]
    if found:
        yield Finding("left_overs", len(found), f"{summarize(found, _EXAMPLES)}, of writers that were killed", "delete")


def _read_all(con: duckdb.DuckDBPyConnection, directory: Path) -> None:
    """Read every block of every table, which DuckDB compares with its checksum. Raises as `read_error` returns."""
    try:
        for table in (*TABLES, *PER_EVENT):
            con.execute(f"SELECT bit_xor(hash(t)) FROM {table} AS t").fetchall()
    except duckdb.Error as error:
        raise read_error(directory, error) from error


def _against_log(
    con: duckdb.DuckDBPyConnection, projection: Projection, log: EventLog, snapshot: Snapshot
) -> Iterator[Finding]:
    known = publish.segments_of(projection, log)
    if known is None:
        yield Finding("tables_of_another_log", 1, f"the tables were not made of {log.location}", "rebuild")
        return
    if projection.schema_id != build_layer.schema_id():
        yield _OUTDATED
    new = snapshot.segments - known
    if new and not publish.holds(projection, log, snapshot):
        yield Finding(
            "tables_behind", log.count_events(new), "events in the log that the tables lack", "bring up to date"
        )
    if known - snapshot.segments:
        yield Finding("tables_hold_more", 1, "the tables hold segments that were given up", "rebuild")
        return
    con.execute("SET arrow_lossless_conversion = true")
    [(different,)] = con.execute(_DIFFERENT.format(stored=build_layer.stored_events(con, log, known))).fetchall()
    [(results, rows)] = con.execute(
        "SELECT (SELECT count(*) FROM events WHERE type = 'ResultRecorded'), (SELECT count(*) FROM result_rows)"
    ).fetchall()
    if different or results != rows:
        what = f"differing events: {different:,}; {count_of(results, 'result')} in {count_of(rows, 'row')}"
        yield Finding("tables_differ", different + abs(results - rows), what, "rebuild")


def _references(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    for name, sql, what in (
        ("ledger_miscounts", _MISCOUNTED, "documents whose results are not as many as the ledger says"),
        ("doubts_of_no_result", _OF_NO_RESULT, "suspicions or suspicion_overrides of results that are not there"),
    ):
        examples = [row[0] for row in con.execute(sql).fetchall()]
        if examples:
            yield Finding(name, len(examples), f"{what}: {summarize(examples, _EXAMPLES)}")


def _undescribed_models(
    con: duckdb.DuckDBPyConnection, describe: Describe
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the finding of known models without a description that were measured here, and of those of imports."""
    known = [(model, own) for model, own in con.execute(_UNDESCRIBED).fetchall() if describe(model) is not None]

    def finding(models: list[str]) -> tuple[Finding, ...]:
        what = f"known models without a description: {summarize(models, _EXAMPLES)}"
        return (Finding("models_undescribed", len(models), what, "describe"),) if models else ()

    return finding([model for model, own in known if own]), finding([model for model, own in known if not own])


def _verdicts(projection: Projection, set_aside: list[tuple[str, str, int]]) -> tuple[RuleVerdict, ...]:
    origins: dict[str, dict[str, int]] = {rule.name: {} for rule in RULES}
    for rule, origin, rows in set_aside:
        origins.setdefault(rule, {})[origin] = rows
    aside = {rule: sum(found.values()) for rule, found in origins.items()}
    return tuple(
        RuleVerdict(check.rule, check.rows + aside[check.rule], aside[check.rule], check.broken, origins[check.rule])
        for check in publish.audit_projection(projection, by_expectations=True)
    )


def _repair(
    settings: Settings, describe: Describe, findings: tuple[Finding, ...], copy: integrity.LogCopy | None
) -> Iterator[str]:
    """Make the repairs, and yield a sentence for each one done."""
    names = {finding.name for finding in findings}
    if "left_overs" in names:
        for path in remove_leftovers(settings):
            yield f"left_overs: deleted {path}, which no writer ever finished"
    repaired = list(_repair_log(settings, copy, damaged="segments_damaged" in names))
    yield from repaired
    log = EventLog.open(settings)
    if "segments_unreadable" in names or integrity.lost_segments(log):
        return  # not rebuilt, because tables that hold more than the log are its last copy
    wrong = {finding.name for finding in findings if finding.repair == "rebuild"}
    if wrong or repaired or "tables_behind" in names:
        yield f"{', '.join(sorted(wrong) or ['tables_behind'])}: {_refresh(settings, full=bool(wrong))}"
    models = _describe_models(settings, describe)
    if models:
        yield f"models_undescribed: described {summarize(models, _EXAMPLES)}; {_refresh(settings, full=False)}"


def _repair_log(settings: Settings, copy: integrity.LogCopy | None, *, damaged: bool) -> Iterator[str]:
    """Move damaged files to quarantine, and restore lost segments from the copy."""
    log = EventLog.open(settings)
    for damage in _damaged(log) if damaged else ():
        integrity.set_aside(log, [damage])
        yield f"segments_damaged: set {damage} aside"
    gone = integrity.lost_segments(log)
    if gone and copy is not None:
        back = integrity.restore_segments(log, gone, copy)
        if back:
            yield f"segments_gone: brought {summarize(sorted(back), _EXAMPLES)} back from the back-up"


def _refresh(settings: Settings, *, full: bool) -> str:
    done = publish.refresh(settings, full=full)
    how = "made again from the log" if full else "brought up to the log"
    return f"tables {how}: {count_of(done.rows['events'], 'event')}, {count_of(done.rows['results'], 'result')}"


def _describe_models(settings: Settings, describe: Describe) -> list[str]:
    """Append the description of every known model that has none, and return their names."""
    projection = current(settings)
    if projection is None:
        return []
    with projection.open() as con:
        models: list[Any] = [row[0] for row in con.execute(_UNDESCRIBED).fetchall()]
    known = [(model, make) for model in models if (make := describe(model)) is not None]
    if known:
        EventLog.open(settings).append([Event.of(make(), source="validate") for _, make in known])
    return [model for model, _ in known]
