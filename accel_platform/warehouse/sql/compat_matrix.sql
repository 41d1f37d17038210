-- Does each model run on each device in each mode today, and how does it compare? Only measured and unsuspected imported
-- rows count, and a measured row only where it failed or its outputs were verified. Of a device's measurements those
-- under its newest fingerprint count, because a change makes it another machine. Of each shape the newest attempt decides,
-- a measurement before an import.
-- Measurements that other processes disturbed are rated nowhere, and are a shape's figure only where it has no others.
-- The rating compares equal shapes (and numbers of processes) that work, only: best p50 of that shape on any device over
-- this device's p50, then the median over the shapes both have; high >= 0.8, medium >= 0.4, low below, NULL where no
-- other device measured any shape of that model.
WITH matrix_cells AS ($matrix_cells),
machines AS (
    SELECT *, max(CASE WHEN measured AND measured_fingerprint IS NOT NULL
            THEN {last_at: last_at, last_id: last_id, fingerprint: measured_fingerprint} END
        ) OVER (PARTITION BY model_id, hardware, choice, device_id, mode) AS newest_machine
    FROM matrix_cells
),
current AS (
    SELECT *, NOT measured OR measured_fingerprint IS NOT DISTINCT FROM newest_machine.fingerprint AS today FROM machines
),
judged AS (
    SELECT *, CASE failing WHEN 'wrong' THEN 'outputs differ from the reference' ELSE last_reason END AS problem
    FROM current
),
decided AS (
    SELECT *, max(CASE WHEN works THEN last_at END) OVER shape AS last_worked,
        today AND row_number() OVER by_age = 1 AS stands
    FROM judged
    WINDOW shape AS (PARTITION BY model_id, hardware, choice, device_id, mode, precision, batch_size, sequence_length,
        output_tokens, image_size, processes),
    by_age AS (PARTITION BY model_id, hardware, choice, device_id, mode, precision, batch_size, sequence_length,
        output_tokens, image_size, processes
        ORDER BY today DESC, measured DESC, last_at DESC, last_id DESC)
),
shapes AS (
    SELECT model_id, mode, precision, batch_size, sequence_length, output_tokens, image_size, processes, min(steady_p50_ms) AS best_ms,
        count(DISTINCT hardware) FILTER (WHERE steady_p50_ms IS NOT NULL) AS names,
        count(DISTINCT {hardware: hardware, device_id: device_id}) FILTER (WHERE steady_p50_ms IS NOT NULL) AS devices
    FROM decided
    WHERE works AND stands
    GROUP BY model_id, mode, precision, batch_size, sequence_length, output_tokens, image_size, processes
),
rated AS (
    SELECT j.*, s.names, s.devices,
        CASE WHEN j.works AND j.stands AND s.devices > 1 THEN s.best_ms / nullif(j.steady_p50_ms, 0) END AS relative_speed,
        CASE WHEN j.works OR j.last_worked IS NULL THEN j.problem
             ELSE 'worked until ' || strftime(j.last_worked, '%Y-%m-%d') || ', failed on ' || strftime(j.last_at, '%Y-%m-%d')
                 || coalesce(': ' || j.problem, '') END AS dated_problem
    FROM decided AS j
    LEFT JOIN shapes AS s ON s.model_id = j.model_id AND s.mode = j.mode
        AND s.precision IS NOT DISTINCT FROM j.precision AND s.batch_size IS NOT DISTINCT FROM j.batch_size
        AND s.sequence_length IS NOT DISTINCT FROM j.sequence_length
        AND s.output_tokens IS NOT DISTINCT FROM j.output_tokens
        AND s.image_size IS NOT DISTINCT FROM j.image_size AND s.processes IS NOT DISTINCT FROM j.processes
),
summed AS (
    SELECT model_id, min(model_family) AS model_family, hardware, device_id, min(device_name) AS device_name,
        min(device_count) AS device_count, mode, bool_or(works AND stands) AS any_works, quantile_disc(relative_speed, 0.5) AS relative_speed,
        -- Shown for the shape that most hardware names, then most devices, have a figure of, then in float32, then the smallest:
        -- devices that have the model's commonest shape all show that one.
        min_by(
            {precision: precision, batch_size: batch_size, sequence_length: sequence_length, output_tokens: output_tokens,
             image_size: image_size,
             processes: processes, latency_p50_ms: latency_p50_ms, disturbed: disturbed},
            {untimed: CASE WHEN latency_p50_ms IS NULL THEN 1 ELSE 0 END, names: -names, devices: -devices,
             other: CASE WHEN precision = 'float32' THEN 0 ELSE 1 END, precision: coalesce(precision, ''),
             processes: coalesce(processes, 0), any_batch: CASE WHEN batch_size IS NULL THEN 1 ELSE 0 END, batch_size: batch_size,
             sequence_length: coalesce(sequence_length, 0), output_tokens: coalesce(output_tokens, 0),
             image_size: coalesce(image_size, 0), latency_p50_ms: latency_p50_ms,
             last_id: last_id}
        ) FILTER (WHERE works AND stands) AS shown,
        sum(results) FILTER (WHERE works)::BIGINT AS results_ok,
        sum(results) FILTER (WHERE NOT works)::BIGINT AS results_failed,
        max(last_at) FILTER (WHERE works) AS last_worked_at, max(last_at) FILTER (WHERE NOT works) AS last_failed_at,
        max({last_at: last_at, last_id: last_id, problem: dated_problem, failure_class: last_failure_class}) FILTER (WHERE NOT works AND stands) AS last_problem,
        list_sort(list(last_id) FILTER (WHERE works AND stands)) AS working_evidence,
        list_sort(list(last_id) FILTER (WHERE NOT works AND stands)) AS failing_evidence
    FROM rated
    GROUP BY model_id, hardware, device_id, mode
)
SELECT model_id, model_family, hardware, device_id, device_name, device_count, mode,
    CASE WHEN any_works THEN 'compatible' ELSE 'failed' END AS state,
    CASE WHEN relative_speed >= 0.8 THEN 'high' WHEN relative_speed >= 0.4 THEN 'medium'
         WHEN relative_speed IS NOT NULL THEN 'low' END AS rating,
    relative_speed, shown.precision, shown.batch_size, shown.sequence_length, shown.output_tokens, shown.image_size, shown.processes,
    shown.latency_p50_ms, shown.disturbed, coalesce(results_ok, 0) AS results_ok,
    coalesce(results_failed, 0) AS results_failed, last_problem.problem AS reason, last_problem.failure_class AS failure_class,
    last_worked_at, last_failed_at,
    CASE WHEN any_works THEN working_evidence ELSE failing_evidence END AS evidence
FROM summed
