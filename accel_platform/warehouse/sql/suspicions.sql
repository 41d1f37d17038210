-- One row per reason to doubt an imported result: those it was stored with, and those found later.
WITH stored AS (
    SELECT r.event_id, unnest(from_json(e.payload->'$.suspicions', '[{
        "rule": "VARCHAR", "verdict": "VARCHAR", "evidence": "VARCHAR", "confidence": "DOUBLE"}]')) AS s
    FROM new_results AS r
    JOIN new_events AS e ON e.event_id = r.event_id
    WHERE r.provenance IN ('suspect', 'simulated')
),
later AS (
    SELECT event_id, unnest(json_transform(payload, '{
        "result_id": "UUID", "rule": "VARCHAR", "verdict": "VARCHAR", "evidence": "VARCHAR", "confidence": "DOUBLE"}'))
    FROM new_events
    WHERE type = 'ResultSuspected'
)
-- Rounded, because not every engine reads all 17 digits of a number in a list.
SELECT event_id, event_id AS result_id, s.rule, s.verdict, s.evidence, round(s.confidence, 6) AS confidence FROM stored
UNION ALL
SELECT event_id, result_id, rule, verdict, evidence, round(confidence, 6) FROM later
