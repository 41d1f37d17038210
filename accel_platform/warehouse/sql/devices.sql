-- Each hardware name on each host as it was last seen: the device behind it, or why there is none.
WITH observed AS (
    SELECT host_id, recorded_at, event_id, payload,
        payload->>'$.hardware' AS hardware, payload->>'$.choice' AS choice,
        payload->>'$.device_id' AS device_id
    FROM other_events
    WHERE type = 'DeviceObserved'
),
-- One detection observes every name, so what an older one saw and the newest did not is gone from that host.
latest AS (
    SELECT *, rank() OVER (PARTITION BY host_id, hardware ORDER BY recorded_at DESC) AS age FROM observed
)
SELECT host_id, max(recorded_at) AS observed_at, unnest(json_transform(arg_max(payload, event_id), '{
    "hardware": "VARCHAR", "choice": "VARCHAR", "backend": "VARCHAR", "available": "BOOLEAN", "reason": "VARCHAR",
    "device_id": "VARCHAR", "name": "VARCHAR", "vendor": "VARCHAR", "driver": "VARCHAR",
    "runtime_versions": "JSON", "memory_mib": "DOUBLE", "cores": "INTEGER", "clock_max_mhz": "DOUBLE",
    "architecture": "VARCHAR", "vector_bits": "INTEGER", "governor": "VARCHAR", "emulated": "BOOLEAN"}'))
FROM latest
WHERE age = 1
GROUP BY host_id, hardware, choice, device_id
