-- One row per DeviceObserved event: a hardware name on a host, with the device behind it, or why there is none. A device
-- goes by its name in the spec sheet, as in results.
WITH parsed AS (
    SELECT host_id, recorded_at AS observed_at, event_id, unnest(json_transform(payload, '{
        "hardware": "VARCHAR", "choice": "VARCHAR", "backend": "VARCHAR", "available": "BOOLEAN", "reason": "VARCHAR",
        "device_id": "VARCHAR", "name": "VARCHAR", "vendor": "VARCHAR", "driver": "VARCHAR",
        "runtime_versions": "JSON", "memory_mib": "DOUBLE", "cores": "INTEGER", "clock_max_mhz": "DOUBLE",
        "architecture": "VARCHAR", "vector_bits": "INTEGER", "governor": "VARCHAR", "emulated": "BOOLEAN"}'))
    FROM other_events
    WHERE type = 'DeviceObserved'
),
sheet AS ($device_sheet)
SELECT p.host_id, p.observed_at, p.event_id, p.hardware, p.choice, p.backend, p.available, p.reason, p.device_id,
    coalesce(sheet.name, p.name) AS name, p.name AS source_name, p.vendor, p.driver, p.runtime_versions, p.memory_mib,
    p.cores, p.clock_max_mhz, p.architecture, p.vector_bits, p.governor, p.emulated
FROM parsed AS p
LEFT JOIN sheet ON sheet.key = regexp_replace(lower(p.name), $device_noise, '', 'g')
