-- What could not become a result: records an import set aside, results that break a data rule, once per rule, and
-- damaged blobs of the log.
WITH refused AS (
    SELECT event_id, causation_id AS ledger_id, occurred_at, unnest(json_transform(payload, '{
        "source_path": "VARCHAR", "content_sha256": "VARCHAR", "pointer": "VARCHAR", "rule": "VARCHAR",
        "reason": "VARCHAR", "content": "VARCHAR"}'))
    FROM new_events
    WHERE type = 'RecordQuarantined'
),
breaking AS (
    SELECT event_id, occurred_at, source_path, unnest(broken_rules) AS rule
    FROM new_results
    WHERE broken_rules IS NOT NULL
)
SELECT event_id, ledger_id, occurred_at, source_path, content_sha256, pointer, rule, reason, content FROM refused
UNION ALL
SELECT b.event_id, e.causation_id, b.occurred_at, b.source_path, NULL, NULL, b.rule,
    'The result breaks this data rule.', e.payload
FROM breaking AS b
JOIN new_events AS e ON e.event_id = b.event_id
UNION ALL
SELECT event_id, NULL, occurred_at, payload->>'$.key', NULL, NULL, 'segment_intact', payload->>'$.reason', NULL
FROM new_events
WHERE type = 'SegmentQuarantined'
