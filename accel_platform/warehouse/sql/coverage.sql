-- Each architecture on each hardware name of each host, as it was last checked.
SELECT host_id, arg_max(event_id, (recorded_at, event_id)) AS event_id, arg_max(run_id, (recorded_at, event_id)) AS run_id,
    max(recorded_at) AS checked_at, unnest(json_transform(arg_max(payload, (recorded_at, event_id)), '{
    "model_type": "VARCHAR", "family": "VARCHAR", "category": "VARCHAR", "hardware": "VARCHAR", "status": "VARCHAR",
    "failure_class": "VARCHAR", "reason": "VARCHAR", "relative_error": "DOUBLE", "max_abs_error": "DOUBLE",
    "tolerance": "DOUBLE", "parameters": "BIGINT", "scale": "VARCHAR", "inputs": "VARCHAR[]", "duration_s": "DOUBLE",
    "versions": "JSON"}'))
FROM other_events
WHERE type = 'ArchitectureChecked'
GROUP BY host_id, payload->>'$.model_type', payload->>'$.hardware'
