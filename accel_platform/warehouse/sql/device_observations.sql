-- One row per DeviceObserved event: a hardware name on a host, with the device behind it, or why there is none.
SELECT host_id, recorded_at AS observed_at, event_id, unnest(json_transform(payload, '{
    "hardware": "VARCHAR", "choice": "VARCHAR", "backend": "VARCHAR", "available": "BOOLEAN", "reason": "VARCHAR",
    "device_id": "VARCHAR", "name": "VARCHAR", "vendor": "VARCHAR", "driver": "VARCHAR",
    "runtime_versions": "JSON", "memory_mib": "DOUBLE", "cores": "INTEGER", "clock_max_mhz": "DOUBLE",
    "architecture": "VARCHAR", "vector_bits": "INTEGER", "governor": "VARCHAR", "emulated": "BOOLEAN"}'))
FROM other_events
WHERE type = 'DeviceObserved'
