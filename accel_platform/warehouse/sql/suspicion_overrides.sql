-- Each time a person decided that one rule is wrong about one result.
SELECT event_id, recorded_at, (payload->>'$.result_id')::UUID AS result_id, payload->>'$.rule' AS rule,
    payload->>'$.by' AS overruled_by, payload->>'$.reason' AS reason
FROM new_events
WHERE type = 'SuspicionOverruled'
