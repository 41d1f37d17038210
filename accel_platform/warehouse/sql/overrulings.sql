-- Each time a person said that one rule is wrong about one result.
SELECT event_id, recorded_at, unnest(json_transform(payload, '{
    "result_id": "UUID", "rule": "VARCHAR", "by": "VARCHAR", "reason": "VARCHAR"}'))
FROM new_events
WHERE type = 'SuspicionOverruled'
