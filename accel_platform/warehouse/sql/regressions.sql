-- Each shift that was found in a series of measurements, once, and what became of it: `accepted` or `rejected` by a
-- person, whose last word counts; `gone` when the newest three results of its series all lie nearer to where it was before
-- (where the cell failed, on either side: when the newest is as before), else `open`.
WITH found AS (
    SELECT payload->>'$.regression_id' AS regression_id, min(occurred_at) AS found_at,
        unnest(json_transform(arg_max(payload, (recorded_at, event_id)), '{
            "found_by": "VARCHAR", "state": "VARCHAR", "model_id": "VARCHAR", "hardware": "VARCHAR",
            "choice": "VARCHAR", "device_id": "VARCHAR", "fingerprint": "VARCHAR", "mode": "VARCHAR",
            "precision": "VARCHAR", "batch_size": "BIGINT", "sequence_length": "BIGINT", "processes": "BIGINT",
            "weights_sha256": "VARCHAR", "before_ms": "DOUBLE", "after_ms": "DOUBLE", "change_percent": "DOUBLE",
            "p_value": "DOUBLE", "noise_percent": "DOUBLE", "processes_before": "BIGINT", "processes_after": "BIGINT",
            "first_result": "UUID", "evidence": "UUID[]", "commits_before": "VARCHAR[]", "commits_after": "VARCHAR[]",
            "reason": "VARCHAR"}'))
    FROM other_events
    WHERE type = 'RegressionFound'
    GROUP BY payload->>'$.regression_id'
),
said AS (
    SELECT payload->>'$.regression_id' AS regression_id, arg_max(type, (recorded_at, event_id)) AS type,
        arg_max(occurred_at, (recorded_at, event_id)) AS at,
        unnest(json_transform(arg_max(payload, (recorded_at, event_id)),
            '{"by": "VARCHAR", "reason": "VARCHAR", "results": "UUID[]"}'))
    FROM other_events
    WHERE type IN ('ShiftAccepted', 'ShiftRejected')
    GROUP BY payload->>'$.regression_id'
),
accepted AS (SELECT * FROM said WHERE type = 'ShiftAccepted'),
rejected AS (SELECT * FROM said WHERE type = 'ShiftRejected'),
since AS (
    SELECT f.regression_id, f.before_ms, f.after_ms, r.status = 'ok' AS works, r.latency_p50_ms,
        row_number() OVER (PARTITION BY f.regression_id ORDER BY r.result_id DESC) AS age
    FROM found AS f
    JOIN judged_results AS r ON r.model_id = f.model_id AND r.fingerprint = f.fingerprint AND r.hardware = f.hardware
        AND r.device_id = f.device_id AND r.mode = f.mode AND r.precision = f.precision
        AND r.batch_size = f.batch_size AND r.choice IS NOT DISTINCT FROM f.choice
        AND r.sequence_length IS NOT DISTINCT FROM f.sequence_length
        AND r.processes IS NOT DISTINCT FROM f.processes AND r.weights_sha256 IS NOT DISTINCT FROM f.weights_sha256
    -- Ids of measurements of ours begin with their time.
    WHERE r.result_id > f.first_result AND r.provenance = 'measured' AND (r.verified OR r.status <> 'ok')
),
now AS (
    SELECT regression_id, CASE WHEN bool_and(after_ms IS NULL) THEN bool_or(works AND age = 1)
        WHEN bool_and(before_ms IS NULL) THEN bool_or(NOT works AND age = 1)
        ELSE count(*) = 3 AND bool_and(coalesce(
            works AND abs(latency_p50_ms - before_ms) < abs(latency_p50_ms - after_ms), false))
        END AS gone
    FROM since
    WHERE age <= 3
    GROUP BY regression_id
)
SELECT f.regression_id, CASE WHEN a.regression_id IS NOT NULL THEN 'accepted'
        WHEN r.regression_id IS NOT NULL THEN 'rejected' WHEN n.gone THEN 'gone' ELSE 'open' END AS state,
    f.state AS direction, f.found_by, f.model_id, f.hardware, f.choice, f.device_id, f.fingerprint, f.mode, f.precision,
    f.batch_size, f.sequence_length, f.processes, f.weights_sha256, f.before_ms, f.after_ms, f.change_percent, f.p_value,
    f.noise_percent, f.processes_before, f.processes_after, f.first_result, f.evidence, f.commits_before,
    f.commits_after, f.reason, f.found_at,
    a.at AS accepted_at, a.by AS accepted_by, a.reason AS accepted_reason,
    r.at AS rejected_at, r.by AS rejected_by, r.reason AS rejected_reason, r.results AS rejected_results
FROM found AS f
LEFT JOIN accepted AS a ON a.regression_id = f.regression_id
LEFT JOIN rejected AS r ON r.regression_id = f.regression_id
LEFT JOIN now AS n ON n.regression_id = f.regression_id
