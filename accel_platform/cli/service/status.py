"""`accel status`: what is here, how fresh it is, and what to do next."""

from __future__ import annotations

from typing import Any

from accel_platform.cli.options import CommonOptions
from accel_platform.cli.output import print_json, print_table, say, settings_for
from accel_platform.table_io.values import count_of

_RESULTS = """
SELECT coalesce(sum(1) FILTER (provenance = 'measured'), 0) AS measured,
    coalesce(sum(1) FILTER (provenance NOT IN ('measured', 'emulated') AND NOT published), 0) AS imported,
    coalesce(sum(1) FILTER (published), 0) AS from_packs,
    max(occurred_at) FILTER (provenance = 'measured') AS measured_at
FROM (SELECT *, starts_with(coalesce(source, ''), ?) AS published FROM results)
"""
_TRAINABLE = """
SELECT count(*) > 0 AS trainable FROM (
    SELECT mode FROM usable_results WHERE status = 'ok' GROUP BY mode
    HAVING count(DISTINCT (model_id, hardware, device_id, precision, batch_size, sequence_length)) >= ?
        AND count(DISTINCT model_family) >= ?
)
"""
_REBUILD = "`accel db rebuild`: another version of the platform made the tables."
_OPEN = "SELECT count(*) AS open FROM regressions WHERE state = 'open'"


def status(common: CommonOptions) -> None:
    """Show what is here, how fresh it is, and what to do next."""
    from accel_platform.events import EventLog
    from accel_platform.knowledge.cards import SOURCE_PREFIX
    from accel_platform.warehouse.layers import WarehouseOutdated, current
    from accel_platform.warehouse.publish import holds
    from accel_platform.warehouse.reader import Reader
    from predictor.calibration.conformal import MIN_GROUPS
    from predictor.calibration.cross_validation import MIN_SAMPLES
    from predictor.training.promotion import REFUSED, list_predictors

    settings = settings_for(common.home)
    log = EventLog.open(settings)
    snapshot, projection = log.snapshot(), current(settings)
    tables: dict[str, Any] = {"up_to_date": projection is not None and holds(projection, log, snapshot)}
    outdated = False
    if projection is not None:
        reader = Reader(settings)
        try:
            tables |= reader.rows(_RESULTS, [SOURCE_PREFIX])[0] | reader.rows(_OPEN)[0]
            tables |= reader.rows(_TRAINABLE, [MIN_SAMPLES, MIN_GROUPS])[0]
        except WarehouseOutdated:
            outdated = True
    predictors = list_predictors(settings, log)
    serving = next((one for one in predictors if one["state"] == "serves"), None)
    reasons = (one["state"].removeprefix(REFUSED) for one in predictors if one["state"].startswith(REFUSED))
    refused = None if serving else next(reasons, None)
    answer = {
        "home": str(settings.home),
        "segments": len(snapshot.segments),
        "tables": tables if projection is not None and not outdated else None,
        "tables_of_another_version": outdated,
        "predictor": serving and {"predictor_id": serving["predictor"], "trained_at": serving["trained_at"]},
        "predictor_refused": refused,
        "next": _REBUILD if outdated else _next_step(tables, bool(snapshot.segments), serving is not None, refused),
    }
    if common.wants_json:
        print_json(answer)
        return
    print_table([{"what": name, "state": text} for name, text in _lines(answer)])
    say(f"Next: {answer['next']}")


def _lines(answer: dict[str, Any]) -> list[tuple[str, str]]:
    tables, serving, refused = answer["tables"], answer["predictor"], answer["predictor_refused"]
    lines = [("home", answer["home"])]
    if tables is None:
        state = "of another version of the platform" if answer["tables_of_another_version"] else "none yet"
        return [*lines, ("tables", state), ("log", count_of(answer["segments"], "segment"))]
    last = f", the newest of {tables['measured_at']:%Y-%m-%d %H:%M} UTC" if tables["measured_at"] else ""
    return [
        *lines,
        ("tables", "up to date" if tables["up_to_date"] else "behind the log"),
        ("measured", f"{count_of(tables['measured'], 'result')}{last}"),
        ("imported", count_of(tables["imported"], "result")),
        ("published", f"{count_of(tables['from_packs'], 'result')} of knowledge packs"),
        ("predictor", f"trained {serving['trained_at']:%Y-%m-%d %H:%M} UTC" if serving else refused or "none"),
        ("regressions", f"{tables['open']:,} open"),
    ]


def _next_step(tables: dict[str, Any], has_events: bool, has_predictor: bool, refused: str | None) -> str:
    """Return the command to run next, with its reason."""
    from predictor.calibration.conformal import MIN_GROUPS
    from predictor.calibration.cross_validation import MIN_SAMPLES

    if not has_events:
        return "`accel run` measures this host and serves answers; `accel migrate PATH` imports what you have."
    if not tables["up_to_date"]:
        return "`accel db rebuild`: the log holds more than the tables."
    if tables["open"]:
        return "`accel regress list --state open`: accept or reject what was found."
    if not tables["measured"]:
        return "`accel bench run`: nothing was measured on this host yet."
    if not has_predictor:
        more = f"a predictor of your own takes {MIN_SAMPLES} cells of {MIN_GROUPS} model families in one mode."
        lack = "the stored predictors cannot be used" if refused else "there is no predictor yet"
        return f"`accel train`: {lack}." if tables["trainable"] else f"`accel bench run`: {more}"
    return "`accel recommend MODEL`, or `accel serve` for the pages."
