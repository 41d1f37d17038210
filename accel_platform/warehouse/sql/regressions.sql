-- Each shift that was found in a series of measurements, once, and what became of it: `accepted` or `rejected` by a
-- person, whose last word counts and may reopen it; `gone` when the newest three results of its series all lie nearer to
-- where it was before (where all failed on a side: when the newest is as before; where some did: when the newest three
-- work, or one of them fails again), else `open`. Results of the baseline's commits, measured again, and of other branches
-- than the baseline's say nothing of that, because their code never had the shift. Events that name no measure are of
-- latencies, or of failures where a side has no latency.
WITH recorded AS (
    SELECT payload->>'$.regression_id' AS regression_id, min(occurred_at) AS found_at,
        unnest(json_transform(arg_max(payload, (recorded_at, event_id)), '{
            "found_by": "VARCHAR", "state": "VARCHAR", "measure": "VARCHAR", "model_id": "VARCHAR", "hardware": "VARCHAR",
            "choice": "VARCHAR", "device_id": "VARCHAR", "fingerprint": "VARCHAR", "mode": "VARCHAR",
            "precision": "VARCHAR", "batch_size": "BIGINT", "sequence_length": "BIGINT", "processes": "BIGINT",
            "weights_sha256": "VARCHAR", "before_ms": "DOUBLE", "after_ms": "DOUBLE", "before_mib": "DOUBLE",
            "after_mib": "DOUBLE", "change_percent": "DOUBLE",
            "p_value": "DOUBLE", "noise_percent": "DOUBLE", "processes_before": "BIGINT", "processes_after": "BIGINT",
            "first_result": "UUID", "evidence": "UUID[]", "commits_before": "VARCHAR[]", "commits_after": "VARCHAR[]",
            "reason": "VARCHAR"}'))
    FROM other_events
    WHERE type = 'RegressionFound'
    GROUP BY payload->>'$.regression_id'
),
found AS (
    SELECT *, CASE WHEN measure IN ('memory', 'device_memory') THEN measure
        WHEN measure = 'failures' OR before_ms IS NULL OR after_ms IS NULL THEN 'failures' ELSE 'latency' END AS shifted
    FROM recorded
),
said AS (
    SELECT payload->>'$.regression_id' AS regression_id, arg_max(type, (recorded_at, event_id)) AS type,
        arg_max(occurred_at, (recorded_at, event_id)) AS at,
        unnest(json_transform(arg_max(payload, (recorded_at, event_id)),
            '{"by": "VARCHAR", "reason": "VARCHAR", "results": "UUID[]"}'))
    FROM other_events
    WHERE type IN ('ShiftAccepted', 'ShiftRejected', 'ShiftReopened')
    GROUP BY payload->>'$.regression_id'
),
accepted AS (SELECT * FROM said WHERE type = 'ShiftAccepted'),
rejected AS (SELECT * FROM said WHERE type = 'ShiftRejected'),
branches AS (
    SELECT run_id, min(payload->>'$.labels.commit') AS "commit", min(payload->>'$.labels.branch') AS branch
    FROM other_events
    WHERE type = 'RunStarted'
    GROUP BY run_id
),
baselines AS (
    SELECT f.regression_id, array_agg(b.branch) AS branches
    FROM found AS f
    JOIN branches AS b ON list_contains(f.commits_before, b."commit")
    WHERE b.branch IS NOT NULL
    GROUP BY f.regression_id
),
later AS (
    SELECT f.regression_id, f.state, f.shifted, f.before_ms IS NULL AS failed_before, f.after_ms IS NULL AS failed_after,
        coalesce(f.before_ms, f.before_mib) AS before, coalesce(f.after_ms, f.after_mib) AS after,
        r.status = 'ok' AND r.verified AS works, CASE f.shifted WHEN 'memory' THEN r.memory_peak_mib
            WHEN 'device_memory' THEN r.memory_device_peak_mib ELSE r.latency_p50_ms END AS figure,
        r.result_id
    FROM found AS f
    JOIN judged_results AS r ON r.model_id = f.model_id AND r.fingerprint = f.fingerprint AND r.hardware = f.hardware
        AND r.device_id = f.device_id AND r.mode = f.mode AND r.precision = f.precision
        AND r.batch_size = f.batch_size AND r.choice IS NOT DISTINCT FROM f.choice
        AND r.sequence_length IS NOT DISTINCT FROM f.sequence_length
        AND r.processes IS NOT DISTINCT FROM f.processes AND r.weights_sha256 IS NOT DISTINCT FROM f.weights_sha256
    LEFT JOIN branches AS b ON b.run_id = r.run_id
    LEFT JOIN baselines AS l ON l.regression_id = f.regression_id
    -- Ids of measurements of ours begin with their time.
    WHERE r.result_id > f.first_result AND r.provenance = 'measured' AND (r.verified IS NOT NULL OR r.status <> 'ok')
        AND (b.branch IS NULL OR l.branches IS NULL OR list_contains(l.branches, b.branch))
        AND NOT coalesce(list_contains(f.commits_before, b."commit"), false)
),
since AS (
    SELECT *, row_number() OVER (PARTITION BY regression_id ORDER BY result_id DESC) AS age
    FROM later
    WHERE NOT works OR shifted = 'failures' OR figure IS NOT NULL
),
now AS (
    SELECT regression_id, CASE
        WHEN shifted = 'failures' AND failed_after THEN bool_or(works AND age = 1)
        WHEN shifted = 'failures' AND failed_before THEN bool_or(NOT works AND age = 1)
        WHEN shifted = 'failures' AND state = 'improved' THEN bool_or(NOT works)
        WHEN shifted = 'failures' THEN count(*) = 3 AND bool_and(works)
        ELSE count(*) = 3 AND bool_and(coalesce(works AND abs(figure - before) < abs(figure - after), false))
        END AS gone
    FROM since
    WHERE age <= 3
    GROUP BY regression_id, shifted, state, failed_before, failed_after
)
SELECT f.regression_id, CASE WHEN a.regression_id IS NOT NULL THEN 'accepted'
        WHEN r.regression_id IS NOT NULL THEN 'rejected' WHEN n.gone THEN 'gone' ELSE 'open' END AS state,
    f.state AS direction, f.found_by, f.model_id, f.hardware, f.choice, f.device_id, f.fingerprint, f.mode, f.precision,
    f.batch_size, f.sequence_length, f.processes, f.weights_sha256, f.shifted AS measure, f.before_ms, f.after_ms,
    f.before_mib, f.after_mib, f.change_percent, f.p_value, f.noise_percent, f.processes_before, f.processes_after, f.first_result, f.evidence, f.commits_before,
    f.commits_after, f.reason, f.found_at,
    a.at AS accepted_at, a.by AS accepted_by, a.reason AS accepted_reason,
    r.at AS rejected_at, r.by AS rejected_by, r.reason AS rejected_reason, r.results AS rejected_results
FROM found AS f
LEFT JOIN accepted AS a ON a.regression_id = f.regression_id
LEFT JOIN rejected AS r ON r.regression_id = f.regression_id
LEFT JOIN now AS n ON n.regression_id = f.regression_id
