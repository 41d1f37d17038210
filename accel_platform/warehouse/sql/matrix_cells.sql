-- Attempts summed up as far as `compat_matrix` needs them: one row per shape of a model on a device, kind (measured or
-- imported), fingerprint of measurements, and outcome. Attempts of one row all come to stand or fall together, so new
-- results change the rows of their own shapes alone. Figures of unlike runtimes, and of imports that state other software
-- or threads, are never pooled: of several the fastest one's median is the row's.
WITH tried AS (
    SELECT *, coalesce(occurred_at, recorded_at) AS tried_at, provenance = 'measured' AS measured,
        CASE WHEN disturbed THEN true ELSE false END AS unsteady, coalesce(latency_p50_ms, latency_mean_ms) AS typical_ms
    FROM judged_results
    -- What a runtime does not compute in says nothing of the model.
    WHERE counts AND failure_class IS DISTINCT FROM 'unsupported_precision'
        -- Outputs that nobody compared say neither that the model works nor that it fails.
        AND (failed OR verified OR provenance = 'imported')
),
attempts AS (
    SELECT *, NOT failed AS works, CASE WHEN status <> 'ok' THEN status WHEN failed THEN 'wrong' END AS failing,
        CASE WHEN measured THEN fingerprint END AS measured_fingerprint,
        CASE WHEN measured THEN NULL ELSE fingerprint END AS setup, CASE WHEN measured THEN NULL ELSE threads END AS setup_threads
    FROM tried
),
by_runtime AS (
    SELECT model_id, min(model_family) AS model_family, hardware, choice, device_id, min(device_name) AS device_name,
        min(device_count) AS device_count, mode, precision, batch_size, sequence_length, output_tokens, image_size, processes,
        count(*) AS results, measured, measured_fingerprint, works, failing, bool_and(unsteady) AS disturbed,
        median(CASE WHEN NOT unsteady THEN typical_ms END) AS steady_p50_ms,
        -- Where none was steady, those left are all there are.
        median(CASE WHEN unsteady THEN typical_ms END) AS unsteady_p50_ms,
        -- One maximum, because each orders whole rows, which is most of the work.
        max({tried_at: tried_at, event_id: event_id, reason: reason, failure_class: failure_class}) AS newest
    FROM attempts
    GROUP BY model_id, hardware, choice, device_id, mode, precision, batch_size, sequence_length, output_tokens, image_size,
        processes, measured, measured_fingerprint, works, failing, backend, setup, setup_threads
),
grouped AS (
    SELECT model_id, min(model_family) AS model_family, hardware, choice, device_id, min(device_name) AS device_name,
        min(device_count) AS device_count, mode, precision, batch_size, sequence_length, output_tokens, image_size, processes,
        sum(results)::BIGINT AS results, measured, measured_fingerprint, works, failing, bool_and(disturbed) AS disturbed,
        min(steady_p50_ms) AS steady_p50_ms, min(unsteady_p50_ms) AS unsteady_p50_ms, max(newest) AS newest
    FROM by_runtime
    GROUP BY model_id, hardware, choice, device_id, mode, precision, batch_size, sequence_length, output_tokens, image_size,
        processes, measured, measured_fingerprint, works, failing
)
SELECT model_id, model_family, hardware, choice, device_id, device_name, device_count, mode, precision, batch_size,
    sequence_length, output_tokens, image_size, processes, results, measured, measured_fingerprint, works, failing, disturbed,
    steady_p50_ms, coalesce(steady_p50_ms, unsteady_p50_ms) AS latency_p50_ms, newest.tried_at AS last_at,
    newest.event_id AS last_id, newest.reason AS last_reason, newest.failure_class AS last_failure_class
FROM grouped
