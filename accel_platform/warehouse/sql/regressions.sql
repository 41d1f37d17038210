-- Each shift that was found in a series of measurements, once, and what became of it: `accepted` or `rejected` by a
-- person, whose last word counts and may reopen it; `gone` for good once three results in a row of its branch lie nearer
-- to where it was before (where all failed on a side: once one is as before; where some did: once three in a row work, or
-- one fails again), or when a later shift from the same level took its place; else `open`. Results of
-- the baseline's commits, measured again, and of other branches say nothing of that, because their code never had the
-- shift. A shift that is found again while it is open keeps its id: figures are those of the first time, evidence and
-- commits of all. Events that name no measure are of latencies, or of failures where a side has no latency.
WITH recorded AS (
    SELECT payload->>'$.regression_id' AS regression_id, min(occurred_at) AS found_at,
        flatten(array_agg(CAST(payload->'$.evidence' AS UUID[]))) AS all_evidence,
        arg_min(CAST(payload->'$.commits_before' AS VARCHAR[]), (recorded_at, event_id)) AS first_before,
        flatten(array_agg(CAST(payload->'$.commits_before' AS VARCHAR[]))) AS all_before,
        arg_min(CAST(payload->'$.commits_after' AS VARCHAR[]), (recorded_at, event_id)) AS first_after,
        flatten(array_agg(CAST(payload->'$.commits_after' AS VARCHAR[]))) AS all_after,
        unnest(json_transform(arg_min(payload, (recorded_at, event_id)), '{
            "found_by": "VARCHAR", "state": "VARCHAR", "measure": "VARCHAR", "model_id": "VARCHAR", "hardware": "VARCHAR",
            "choice": "VARCHAR", "device_id": "VARCHAR", "fingerprint": "VARCHAR", "mode": "VARCHAR",
            "precision": "VARCHAR", "batch_size": "BIGINT", "sequence_length": "BIGINT", "processes": "BIGINT",
            "weights_sha256": "VARCHAR", "before_ms": "DOUBLE", "after_ms": "DOUBLE", "before_mib": "DOUBLE",
            "after_mib": "DOUBLE", "change_percent": "DOUBLE",
            "p_value": "DOUBLE", "noise_percent": "DOUBLE", "processes_before": "BIGINT", "processes_after": "BIGINT",
            "first_result": "UUID", "reason": "VARCHAR"}'))
    FROM other_events
    WHERE type = 'RegressionFound'
    GROUP BY payload->>'$.regression_id'
),
branches AS (
    SELECT run_id, min(payload->>'$.labels.commit') AS "commit", min(payload->>'$.labels.branch') AS branch
    FROM other_events
    WHERE type = 'RunStarted'
    GROUP BY run_id
),
found AS (
    SELECT c.*, list_sort(list_distinct(c.all_evidence)) AS evidence,
        list_concat(c.first_before, list_sort(list_distinct(list_filter(c.all_before,
            lambda name: NOT list_contains(c.first_before, name))))) AS commits_before,
        list_concat(c.first_after, list_sort(list_distinct(list_filter(c.all_after,
            lambda name: NOT list_contains(c.first_after, name))))) AS commits_after,
        CASE WHEN measure IN ('memory', 'device_memory') THEN measure
            WHEN measure = 'failures' OR before_ms IS NULL OR after_ms IS NULL THEN 'failures' ELSE 'latency' END AS shifted,
        coalesce(before_ms, before_mib) AS before, coalesce(after_ms, after_mib) AS after, b.branch
    FROM recorded AS c
    LEFT JOIN judged_results AS r ON r.result_id = c.first_result
    LEFT JOIN branches AS b ON b.run_id = r.run_id
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
results AS (
    SELECT f.regression_id, f.state, f.shifted, f.after_ms IS NULL AS failed_after,
        f.before, f.after, r.status = 'ok' AND r.verified AS works, CASE f.shifted WHEN 'memory' THEN r.memory_peak_mib
            WHEN 'device_memory' THEN r.memory_device_peak_mib ELSE r.latency_p50_ms END AS figure,
        r.result_id, r.run_id, r.occurred_at, r.result_id = f.first_result AS is_first
    FROM found AS f
    JOIN judged_results AS r ON r.model_id = f.model_id AND r.fingerprint = f.fingerprint AND r.hardware = f.hardware
        AND r.device_id = f.device_id AND r.mode = f.mode AND r.precision = f.precision
        AND r.batch_size = f.batch_size AND r.choice IS NOT DISTINCT FROM f.choice
        AND r.sequence_length IS NOT DISTINCT FROM f.sequence_length
        AND r.processes IS NOT DISTINCT FROM f.processes AND r.weights_sha256 IS NOT DISTINCT FROM f.weights_sha256
    LEFT JOIN branches AS b ON b.run_id = r.run_id
    -- Ids of measurements of ours begin with their time.
    WHERE r.result_id >= f.first_result AND r.provenance = 'measured' AND (r.verified IS NOT NULL OR r.status <> 'ok')
        AND (b.branch IS NULL OR f.branch IS NULL OR b.branch = f.branch)
        AND NOT coalesce(list_contains(f.commits_before, b."commit"), false)
),
seen AS (
    SELECT regression_id, count(DISTINCT run_id) AS runs, max(occurred_at) AS last_seen
    FROM results
    WHERE CASE WHEN shifted = 'failures' THEN works = (state = 'improved')
        ELSE works AND abs(figure - before) >= abs(figure - after) END
    GROUP BY regression_id
),
since AS (
    SELECT regression_id, result_id, shifted = 'failures' AND (failed_after OR state = 'improved') AS one_tells,
        CASE WHEN shifted = 'failures' THEN works = (state = 'regressed')
            ELSE coalesce(works AND abs(figure - before) < abs(figure - after), false) END AS is_back
    FROM results
    WHERE NOT is_first AND (NOT works OR shifted = 'failures' OR figure IS NOT NULL)
),
stretches AS (
    SELECT *, sum(CAST(is_back AS INTEGER)) OVER (
        PARTITION BY regression_id ORDER BY result_id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS back_of_three
    FROM since
),
back AS (
    SELECT DISTINCT regression_id FROM stretches WHERE CASE WHEN one_tells THEN is_back ELSE back_of_three = 3 END
),
-- What was found from the same level again, unless a person rejected that.
replaced AS (
    SELECT DISTINCT f.regression_id
    FROM found AS f
    JOIN found AS g ON g.first_result > f.first_result AND g.shifted = f.shifted AND g.state = f.state
        AND g.model_id = f.model_id AND g.fingerprint = f.fingerprint AND g.hardware = f.hardware
        AND g.device_id = f.device_id AND g.mode = f.mode AND g.precision = f.precision
        AND g.batch_size = f.batch_size AND g.choice IS NOT DISTINCT FROM f.choice
        AND g.sequence_length IS NOT DISTINCT FROM f.sequence_length
        AND g.processes IS NOT DISTINCT FROM f.processes AND g.weights_sha256 IS NOT DISTINCT FROM f.weights_sha256
        AND g.branch IS NOT DISTINCT FROM f.branch
        AND (f.shifted = 'failures' OR abs(g.before - f.before) < abs(g.before - f.after))
    WHERE g.regression_id NOT IN (SELECT regression_id FROM rejected)
)
SELECT f.regression_id, CASE WHEN a.regression_id IS NOT NULL THEN 'accepted'
        WHEN r.regression_id IS NOT NULL THEN 'rejected'
        WHEN coalesce(n.regression_id, o.regression_id) IS NOT NULL THEN 'gone' ELSE 'open' END AS state,
    f.state AS direction, f.found_by, f.model_id, f.hardware, f.choice, f.device_id, f.fingerprint, f.mode, f.precision,
    f.batch_size, f.sequence_length, f.processes, f.weights_sha256, f.shifted AS measure, f.before_ms, f.after_ms,
    f.before_mib, f.after_mib, f.change_percent, f.p_value, f.noise_percent, f.processes_before, f.processes_after,
    f.first_result, f.evidence, f.commits_before, f.commits_after, f.branch, f.reason, f.found_at, coalesce(s.runs, 0) AS runs, s.last_seen,
    a.at AS accepted_at, a.by AS accepted_by, a.reason AS accepted_reason,
    r.at AS rejected_at, r.by AS rejected_by, r.reason AS rejected_reason, r.results AS rejected_results
FROM found AS f
LEFT JOIN accepted AS a ON a.regression_id = f.regression_id
LEFT JOIN rejected AS r ON r.regression_id = f.regression_id
LEFT JOIN back AS n ON n.regression_id = f.regression_id
LEFT JOIN seen AS s ON s.regression_id = f.regression_id
LEFT JOIN replaced AS o ON o.regression_id = f.regression_id
