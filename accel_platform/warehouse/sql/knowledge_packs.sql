-- Each time a knowledge pack was added or removed; the last row of a pack decides. Its results have the `source`
-- `pack:PACK@VERSION`.
SELECT event_id, recorded_at, payload->>'$.pack' AS pack, payload->>'$.version' AS version,
    type = 'KnowledgeAdded' AS used, payload->>'$.by' AS removed_by, payload->'$.card' AS card
FROM new_events
WHERE type IN ('KnowledgeAdded', 'KnowledgeRemoved')
