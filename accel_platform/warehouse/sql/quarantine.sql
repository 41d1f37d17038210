-- What could not become a result: records an import set aside, results that break a data rule, once per rule, and
-- damaged blobs of the log.
SELECT event_id, causation_id AS ledger_id, occurred_at, unnest(json_transform(payload, '{
    "source_path": "VARCHAR", "content_sha256": "VARCHAR", "pointer": "VARCHAR", "rule": "VARCHAR",
    "reason": "VARCHAR", "content": "VARCHAR"}'))
FROM new_events
WHERE type = 'RecordQuarantined'
UNION ALL BY NAME
SELECT r.event_id, e.causation_id AS ledger_id, r.occurred_at, r.source_path, unnest(r.broken_rules) AS rule,
    'The result breaks this data rule.' AS reason, e.payload AS content
FROM new_results AS r
JOIN new_events AS e USING (event_id)
WHERE r.broken_rules IS NOT NULL
UNION ALL BY NAME
SELECT event_id, CAST(NULL AS UUID) AS ledger_id, occurred_at, payload->>'$.key' AS source_path, 'segment_intact' AS rule,
    payload->>'$.reason' AS reason
FROM new_events
WHERE type = 'SegmentQuarantined'
