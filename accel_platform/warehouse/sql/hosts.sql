-- Each machine as it was last seen.
SELECT host_id, max(recorded_at) AS observed_at, unnest(json_transform(arg_max(payload, (recorded_at, event_id)), '{
    "hostname": "VARCHAR", "os": "VARCHAR", "cpu_model": "VARCHAR", "cpu_cores_physical": "INTEGER",
    "cpu_cores_logical": "INTEGER", "memory_mib": "DOUBLE", "software": "JSON"}'))
FROM other_events
WHERE type = 'HostObserved'
GROUP BY host_id
