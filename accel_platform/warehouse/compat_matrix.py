"""The compatibility matrix: its construction from cells, and its SQL over a part of the evidence.

A cell is computed anew only where an event touches it. It sums up the attempts of one shape, fingerprint and
outcome (`sql/matrix_cells.sql`). Cells without new events are taken from the projection in service. So are the rows of
models without new events, because a row follows from its model's cells alone. The rows equal those of a computation
from all results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb

from accel_platform.warehouse import layers
from accel_platform.warehouse.build_layer import connect, table_sql, written_layer
from accel_platform.warehouse.interrupts import interruptible
from accel_platform.warehouse.layers import Layer, Projection

if TYPE_CHECKING:
    from accel_platform.warehouse.spark_engine import SparkEngine


CELLS = "matrix_cells"
"""Table of the cells that `compat_matrix` is computed from. The next projection takes over those that do not change."""
_CELL = (
    "model_id", "hardware", "choice", "device_id", "mode", "precision", "batch_size", "sequence_length", "processes",
)  # fmt: skip
"""Columns that results and verifications of one cell share, though not all that identify it."""
_NAMED_MODELS = 50
"""Largest number of touched models whose names are written into a query, so that its scan skips other models."""

_NONE = "false"
"""Condition of `_named_models` that no model meets."""


def add_matrix(staged: Projection, before: Projection | None, engine: SparkEngine | None) -> None:
    """Add `compat_matrix` to the newest layer of a projection that is not published yet.

    If the `engine` computed the matrix together with the layer, that one is stored, else DuckDB computes it. `before`
    is the published projection to continue from: of the same schema, and with no event that the staged one lacks.
    """
    with layers.translate_write_errors(staged.directory), connect(staged.directory) as con, interruptible(con):
        *lower, newest = staged.layers
        names = [*layers.attach(con, staged.directory, tuple(lower)), "layer"]
        with written_layer(con, staged.directory / newest.file):
            layers.define_views(con, names)
            write_matrix(con, dict(zip(staged.layers, names, strict=True)), before, engine)


def write_matrix(
    con: duckdb.DuckDBPyConnection,
    attached: Mapping[Layer, str],
    before: Projection | None,
    engine: SparkEngine | None,
) -> None:
    """Write `compat_matrix` to `layer`, as `add_matrix` does, in a connection with the views over all layers.

    `attached` are the layers of the projection with their catalog names, the newest last.
    """
    *_, newest = attached
    computed = engine.computed_matrix(newest.file) if engine else None
    if computed is not None:
        con.execute(f"CREATE OR REPLACE TABLE layer.compat_matrix AS {computed}")
        return
    stored = _find_touched(con, attached, before) if before is not None else None
    cells, matrix = table_sql(CELLS), table_sql("compat_matrix", matrix_cells=f"FROM layer.{CELLS}")
    if stored is not None:
        named = _named_models(con)
        if named == _NONE:  # copied, because planning the rest takes a tenth of a small build
            cells, matrix = f"FROM {stored}.{CELLS}", f"FROM {stored}.compat_matrix"
        else:
            cells, matrix = _continued_cells(stored, named), _continued_matrix(stored, named)
    con.execute(f"CREATE OR REPLACE TABLE layer.{CELLS} AS {cells}")
    con.execute(f"CREATE OR REPLACE TABLE layer.compat_matrix AS {matrix}")


def _find_touched(con: duckdb.DuckDBPyConnection, attached: Mapping[Layer, str], before: Projection) -> str | None:
    """Write the cells and models that events since `before` touch into the tables `touched` and `touched_models`.

    Return the catalog name of the newest layer of `before`, which has the stored cells. Return None if all cells have
    to be computed: if knowledge packs were added or removed, or another engine computed the matrix without cells.
    `attached` are the layers of the new projection with their catalog names.
    """
    added = [name for layer, name in attached.items() if layer not in before.layers]
    absorbed = [layer for layer in before.layers if layer not in attached]
    stored = {layer: f"stored_{number}" for number, layer in enumerate(dict.fromkeys([*absorbed, before.layers[-1]]))}
    for layer, name in stored.items():
        con.execute(f"ATTACH '{layers.escape_quotes(before.directory / layer.file)}' AS {name} (READ_ONLY)")

    kept = (
        f"SELECT 1 FROM duckdb_tables() WHERE database_name = '{stored[before.layers[-1]]}' AND table_name = '{CELLS}'"
    )
    if not con.execute(kept).fetchall():
        return None

    def new(table: str, key: str = "event_id") -> str:
        """Return a FROM clause of the table's rows that are in no layer of `before`."""
        rows = layers.rows_sql(table, added)
        known = " UNION ALL ".join(f"SELECT {key} FROM {stored[layer]}.{table}" for layer in absorbed)
        return f"(FROM ({rows}) ANTI JOIN ({known}) USING ({key}))" if known else f"({rows})"

    if con.execute(f"SELECT 1 FROM {new('knowledge_packs', 'event_id, recorded_at')} LIMIT 1").fetchall():
        return None
    columns = ", ".join(_CELL)
    # Compared with the time of recording, because of two copies of an event the one recorded first is kept.
    touching = (
        f"SELECT {columns} FROM {new('result_rows', 'event_id, recorded_at')} "
        f"UNION ALL SELECT {columns} FROM {new('verifications')}"
    )
    con.execute(
        f"CREATE TEMP TABLE judged_anew AS SELECT result_id FROM {new('suspicions')} WHERE result_id <> event_id "
        f"UNION ALL SELECT result_id FROM {new('suspicion_overrides')}"
    )
    if con.execute("FROM judged_anew LIMIT 1").fetchall():
        touching += f" UNION ALL SELECT {columns} FROM result_rows WHERE event_id IN (FROM judged_anew)"
    con.execute(f"CREATE TEMP TABLE touching AS {touching}")
    # By hash, which takes half the time of comparing columns. A cell whose hash collides is computed anew needlessly.
    con.execute(f"CREATE TEMP TABLE touched AS SELECT DISTINCT hash({columns}) FROM touching")
    con.execute("CREATE TEMP TABLE touched_models AS SELECT DISTINCT model_id FROM touching")
    return stored[before.layers[-1]]


def _named_models(con: duckdb.DuckDBPyConnection) -> str | None:
    """Return a condition that names the touched models: `_NONE` where there are none, None for too many."""
    names = [name for (name,) in con.execute("FROM touched_models ORDER BY ALL").fetchall()]
    if len(names) > _NAMED_MODELS:
        return None
    quoted = ", ".join(f"'{layers.escape_quotes(name)}'" for name in names)
    return f"model_id IN ({quoted})" if names else _NONE


def _continued_cells(stored: str, named_models: str | None) -> str:
    """Return SQL of all cells: touched ones are computed, the others are taken from the stored ones."""
    is_touched = f"{named_models or 'true'} AND hash({', '.join(_CELL)}) IN (FROM touched)"
    return (
        f"FROM {stored}.{CELLS} WHERE NOT ({is_touched}) UNION ALL FROM ("
        f"WITH results AS (FROM memory.main.results WHERE {is_touched}), "
        f"judged_results AS ({layers.JUDGED}) FROM ({table_sql(CELLS)}))"
    )


def _continued_matrix(stored: str, named_models: str | None) -> str:
    """Return SQL of the matrix: rows of touched models are computed from their cells, the others are taken over."""
    is_touched = named_models or "model_id IN (FROM touched_models)"
    matrix = table_sql("compat_matrix", matrix_cells=f"FROM layer.{CELLS} WHERE {is_touched}")
    return f"FROM {stored}.compat_matrix WHERE NOT ({is_touched}) UNION ALL FROM ({matrix})"


_EVER = "judged_results AS (SELECT r.* FROM memory.main.judged_results AS r WHERE {condition})"
# Results, verifications and suspicions are limited to those recorded by each moment, so the views judge as they did
# then. A lateral join serves all moments, because DuckDB then reads each table once.
_DATED = """
dated_verifications AS MATERIALIZED (
    SELECT v.*, e.recorded_at FROM verifications AS v JOIN events AS e USING (event_id)
    WHERE len($models) = 0 OR v.model_id IN (
        SELECT model_id FROM result_rows WHERE list_contains($models, model_id) OR list_contains($models, model_family)
    )
),
dated_suspicions AS MATERIALIZED (
    SELECT s.*, e.recorded_at FROM suspicions AS s JOIN events AS e USING (event_id)
)
"""
_OUTPUT = ", ".join(layers.OUTPUT)
_BY_THEN = f"""
verdicts AS (
    SELECT {_OUTPUT}, bool_and(passed) AS passed FROM dated_verifications WHERE recorded_at < m.moment
    GROUP BY {_OUTPUT}
),
result_rows AS (
    SELECT r.* REPLACE (v.passed AS verified)
    FROM memory.main.result_rows AS r
    LEFT JOIN verdicts AS v ON {layers.SAME_OUTPUT}
    WHERE recorded_at < m.moment
        AND (len($models) = 0 OR list_contains($models, r.model_id) OR list_contains($models, r.model_family))
),
late_verdicts AS (FROM memory.main.late_verdicts WHERE false), -- which the verdicts include
suspicions AS (FROM dated_suspicions WHERE recorded_at < m.moment),
suspicion_overrides AS (FROM memory.main.suspicion_overrides WHERE recorded_at < m.moment),
rejudged_results AS ({layers.REJUDGED}),
results AS ({layers.RESULTS_REJUDGED}),
judged_results AS ({layers.JUDGED})
"""


def filtered_matrix_sql(condition: str) -> str:
    """Return SQL for `compat_matrix` over the results `r` that meet a condition."""
    return f"WITH {_EVER.format(condition=condition)} FROM ({table_sql('compat_matrix')})"


def matrix_history_sql() -> str:
    """Return SQL for `compat_matrix` as it stood before each of `$moments`, with `moment` as the first column.

    `$models` are model ids and families; an empty list means all.
    """
    cells = f"WITH {_BY_THEN} FROM ({table_sql('compat_matrix')})"
    return f"WITH {_DATED} SELECT m.moment, c.* FROM (SELECT unnest($moments) AS moment) AS m, LATERAL ({cells}) AS c"
