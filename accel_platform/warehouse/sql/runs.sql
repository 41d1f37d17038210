-- Each run from its start and finish; `status` is 'running' where no finish was recorded (under way, or killed).
WITH started AS (
    SELECT run_id, min(occurred_at) AS started_at, arg_min(host_id, (recorded_at, event_id)) AS host_id,
        unnest(json_transform(arg_min(payload, (recorded_at, event_id)),
            '{"kind": "VARCHAR", "plan": "JSON", "software": "JSON", "labels": "JSON"}'))
    FROM other_events
    WHERE type = 'RunStarted'
    GROUP BY run_id
),
finished AS (
    SELECT run_id, max(occurred_at) AS finished_at,
        unnest(json_transform(arg_max(payload, (recorded_at, event_id)),
            '{"status": "VARCHAR", "cells_ok": "INTEGER", "cells_failed": "INTEGER", "cells_skipped": "INTEGER",
              "duration_s": "DOUBLE", "reason": "VARCHAR"}'))
    FROM other_events
    WHERE type = 'RunFinished'
    GROUP BY run_id
),
counted AS (
    SELECT run_id, sum(results)::BIGINT AS results, min(source) AS source
    FROM results_by_run
    WHERE source NOT IN (SELECT source FROM unused_packs)
    GROUP BY run_id
)
SELECT coalesce(s.run_id, f.run_id, c.run_id) AS run_id, s.kind, c.source, s.host_id, s.started_at, f.finished_at, f.duration_s,
    CASE WHEN f.status IS NOT NULL THEN f.status WHEN s.run_id IS NOT NULL THEN 'running' END AS status, f.reason,
    f.cells_ok, f.cells_failed, f.cells_skipped, coalesce(c.results, 0) AS results, s.plan, s.software,
    s.labels, s.labels->>'$.commit' AS "commit"
FROM started AS s
FULL JOIN finished AS f ON f.run_id = s.run_id
FULL JOIN counted AS c ON c.run_id = coalesce(s.run_id, f.run_id)
