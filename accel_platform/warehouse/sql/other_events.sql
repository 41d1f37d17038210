-- The layer's events that are neither results nor verifications. They are few, so tables that are made of them need no scan
-- of all events, whose files hold some of each type everywhere.
SELECT event_id, type, schema_version, occurred_at, recorded_at, source, host_id, run_id, causation_id, payload
FROM new_events
WHERE type <> 'ResultRecorded' AND type <> 'VerificationRecorded'
