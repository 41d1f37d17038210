-- Each requested benchmark, and what became of it: `open` until a host takes it, `running` until it ends `done`, `failed`
-- or `cancelled`. Whichever end was stored first counts.
WITH asked AS (
    SELECT event_id AS request_id, occurred_at AS requested_at, unnest(json_transform(payload, '{
        "requested_by": "VARCHAR", "hardware": "VARCHAR", "priority": "BIGINT", "max_runtime_s": "DOUBLE",
        "host": "VARCHAR", "config": "JSON"}'))
    FROM other_events
    WHERE type = 'BenchmarkRequested'
),
claimed AS (
    SELECT (payload->>'$.request_id')::UUID AS request_id, max((payload->>'$.attempt')::BIGINT) AS attempts,
        arg_max(occurred_at, (payload->>'$.attempt')::BIGINT) AS claimed_at,
        arg_max(payload->>'$.claimed_by', (payload->>'$.attempt')::BIGINT) AS claimed_by,
        arg_max(host_id, (payload->>'$.attempt')::BIGINT) AS host_id
    FROM other_events
    WHERE type = 'BenchmarkClaimed'
    GROUP BY (payload->>'$.request_id')::UUID
),
closed AS (
    SELECT (payload->>'$.request_id')::UUID AS request_id, min(occurred_at) AS closed_at,
        unnest(json_transform(arg_min(payload, (recorded_at, event_id)),
            '{"status": "VARCHAR", "reason": "VARCHAR", "run_ids": "VARCHAR[]"}'))
    FROM other_events
    WHERE type = 'BenchmarkClosed'
    GROUP BY (payload->>'$.request_id')::UUID
)
SELECT a.request_id, coalesce(d.status, CASE WHEN c.request_id IS NULL THEN 'open' ELSE 'running' END) AS state,
    a.hardware, a.requested_by, a.requested_at, a.priority, a.max_runtime_s, a.host, coalesce(c.attempts, 0) AS attempts,
    c.claimed_by, c.host_id, c.claimed_at, d.closed_at, d.reason, coalesce(d.run_ids, []) AS run_ids, a.config
FROM asked AS a
LEFT JOIN claimed AS c ON c.request_id = a.request_id
LEFT JOIN closed AS d ON d.request_id = a.request_id
