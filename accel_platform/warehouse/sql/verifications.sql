-- One row per comparison of a backend's outputs with the reference. Before there were modes all was inference.
WITH parsed AS (
    SELECT event_id, run_id, host_id, occurred_at, unnest(json_transform(payload, '{
        "model_id": "VARCHAR", "hardware": "VARCHAR", "choice": "VARCHAR", "backend": "VARCHAR",
        "device_id": "VARCHAR", "mode": "VARCHAR",
        "precision": "VARCHAR", "batch_size": "BIGINT", "sequence_length": "BIGINT", "processes": "BIGINT",
        "weights_sha256": "VARCHAR",
        "passed": "BOOLEAN", "reference": "VARCHAR", "max_abs_error": "DOUBLE", "relative_error": "DOUBLE",
        "tolerance": "DOUBLE", "constant_output": "BOOLEAN", "reason": "VARCHAR"}'))
    FROM new_events
    WHERE type = 'VerificationRecorded'
)
SELECT event_id, run_id, host_id, occurred_at, model_id, hardware, choice, backend, device_id,
    coalesce(mode, 'inference') AS mode, precision, batch_size, sequence_length, processes, weights_sha256, passed,
    reference, max_abs_error, relative_error, tolerance, constant_output, reason
FROM parsed
