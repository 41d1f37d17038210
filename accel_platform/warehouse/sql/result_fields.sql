-- One row per ResultRecorded event. Statistics come from the raw samples where there are any, else from what the
-- imported document claims. A percentile needs enough samples to bound it with 99 % confidence (the early-stopping
-- rule of MLPerf Inference): p50 11, p90 64, p95 130, p99 662.
WITH parsed AS (
    SELECT event_id, run_id, host_id, source, occurred_at, recorded_at, samples_ns, len(samples_ns) AS n,
        unnest(json_transform(payload, '{
            "model_id": "VARCHAR", "model_family": "VARCHAR", "hardware": "VARCHAR", "choice": "VARCHAR",
            "backend": "VARCHAR",
            "device_id": "VARCHAR", "device_name": "VARCHAR", "fingerprint": "VARCHAR", "threads": "INTEGER",
            "mode": "VARCHAR", "precision": "VARCHAR", "batch_size": "BIGINT", "sequence_length": "BIGINT",
            "weights_source": "VARCHAR", "weights_sha256": "VARCHAR",
            "latency_mean_ms": "DOUBLE", "latency_p50_ms": "DOUBLE", "latency_p90_ms": "DOUBLE",
            "latency_p95_ms": "DOUBLE", "latency_p99_ms": "DOUBLE", "latency_min_ms": "DOUBLE",
            "latency_max_ms": "DOUBLE", "latency_std_ms": "DOUBLE", "throughput_items_per_s": "DOUBLE",
            "first_ms": "DOUBLE", "load_ms": "DOUBLE", "compile_ms": "DOUBLE", "memory_peak_mib": "DOUBLE",
            "memory_device_peak_mib": "DOUBLE", "energy_j_per_item": "DOUBLE", "energy_source": "VARCHAR",
            "output_tokens": "BIGINT", "prefill_ms": "DOUBLE",
            "time_to_first_token_ms": "DOUBLE", "time_per_output_token_ms": "DOUBLE",
            "throughput_tokens_per_s": "DOUBLE", "forward_ms": "DOUBLE",
            "backward_ms": "DOUBLE", "optimizer_ms": "DOUBLE", "processes": "BIGINT", "scaling_efficiency": "DOUBLE",
            "iterations": "BIGINT", "noisy": "BOOLEAN", "provenance": "VARCHAR",
            "status": "VARCHAR", "reason": "VARCHAR", "failure_class": "VARCHAR", "remedy": "VARCHAR",
            "occurred_local": "TIMESTAMP", "source_path": "VARCHAR", "original": {"image_size": "VARCHAR"},
            "environment": {"contention": {"others_share": "DOUBLE", "waiting_share": "DOUBLE"}}}'))
    FROM new_events
    WHERE type = 'ResultRecorded'
),
figures AS (
    -- Selecting quantiles, linear interpolation between order statistics (Hyndman & Fan type 7), is quicker than sorting.
    -- Between whole nanoseconds they have two decimals; rounded to them, they are the same on every engine and processor.
    SELECT *, list_avg(samples_ns) / 1e6 AS mean_ms,
        list_aggregate(samples_ns, 'quantile_cont', [0.5, 0.9, 0.95, 0.99]) AS quantiles_ns
    FROM parsed
),
-- One runtime, one name, however its result's source spells it.
backends AS (SELECT * FROM (VALUES $backend_names) AS listed (key, name)),
-- One device, one name: what sources call `h100_sxm`, `Nvidia H100 GPU` or `NVIDIA H100 80GB HBM3` goes by its name in the
-- spec sheet. A device of a host of this log keeps its id; hosts that a file describes (`imported-`) are somebody else's, and
-- one device of theirs is one. `4 x h100_sxm` are four of them, which is another device to compare with, and so is a cloud's
-- instance with four: `g5.12xlarge` is `4 x NVIDIA A10G`, and `2 x g5.12xlarge` are two of these. `1 x NVIDIA T4` is the NVIDIA T4.
sheet AS ($device_sheet),
counted AS (
    SELECT *, try_cast(regexp_extract(device_name, '^(\d+) x ', 1) AS INTEGER) AS stated_count,
        regexp_replace(lower(regexp_replace(device_name, '^\d+ x ', '')), $device_noise, '', 'g') AS sheet_key,
        regexp_replace(lower(backend), $not_compared, '', 'g') AS backend_key,
        coalesce(starts_with(host_id, 'imported-'), true) AND provenance <> 'measured' AS of_others
    FROM figures
),
named AS (
    SELECT p.*, coalesce(CAST(nullif(coalesce(p.stated_count, sheet.devices), 1) AS VARCHAR) || ' x ', '') || sheet.name
        AS catalogued, coalesce(p.stated_count, sheet.devices, 1) AS counted_devices,
        coalesce(backends.name, p.backend) AS backend_name
    FROM counted AS p
    LEFT JOIN sheet ON sheet.key = p.sheet_key
    LEFT JOIN backends ON backends.key = p.backend_key
),
rows AS (
    SELECT
        event_id AS result_id, run_id, event_id, host_id,
        p.model_id, p.model_family, p.hardware, p.choice, p.backend_name AS backend,
        CASE WHEN of_others AND catalogued IS NOT NULL THEN 'imported:' || catalogued ELSE p.device_id END AS device_id,
        coalesce(catalogued, p.device_name) AS device_name, p.device_name AS source_device_name,
        CASE WHEN p.device_name IS NOT NULL THEN counted_devices END AS device_count,
        p.fingerprint, p.threads,
        p.mode, p.precision, p.batch_size, p.sequence_length,
        try_cast(p.original.image_size AS DOUBLE) AS image_size, -- pixels along an edge, where a file states them; ours are the model's own
        p.weights_source, p.weights_sha256,
        coalesce(mean_ms, p.latency_mean_ms) AS latency_mean_ms,
        CASE WHEN n IS NULL THEN p.latency_p50_ms WHEN n >= 11 THEN round(quantiles_ns[1], 2) / 1e6 END AS latency_p50_ms,
        CASE WHEN n IS NULL THEN p.latency_p90_ms WHEN n >= 64 THEN round(quantiles_ns[2], 2) / 1e6 END AS latency_p90_ms,
        CASE WHEN n IS NULL THEN p.latency_p95_ms WHEN n >= 130 THEN round(quantiles_ns[3], 2) / 1e6 END AS latency_p95_ms,
        CASE WHEN n IS NULL THEN p.latency_p99_ms WHEN n >= 662 THEN round(quantiles_ns[4], 2) / 1e6 END AS latency_p99_ms,
        coalesce(list_min(samples_ns) / 1e6, p.latency_min_ms) AS latency_min_ms,
        coalesce(list_max(samples_ns) / 1e6, p.latency_max_ms) AS latency_max_ms,
        CASE WHEN n IS NULL THEN p.latency_std_ms WHEN n >= 2 THEN list_stddev_samp(samples_ns) / 1e6 END
            AS latency_std_ms,
        p.first_ms, p.load_ms, p.compile_ms,
        -- Each of several processes has a batch of its own.
        CASE WHEN n IS NULL THEN p.throughput_items_per_s
             ELSE p.batch_size * coalesce(p.processes, 1) * 1e3 / nullif(mean_ms, 0) END AS throughput_items_per_s,
        p.memory_peak_mib, p.memory_device_peak_mib, p.energy_j_per_item, p.energy_source,
        p.output_tokens, p.prefill_ms, p.time_to_first_token_ms, p.time_per_output_token_ms,
        coalesce(p.batch_size * p.output_tokens * 1e3 / nullif(mean_ms, 0), p.throughput_tokens_per_s)
            AS throughput_tokens_per_s,
        p.forward_ms, p.backward_ms, p.optimizer_ms, p.processes, p.scaling_efficiency,
        coalesce(n, p.iterations) AS samples, p.noisy,
        -- As `bench.measure.contention.disturbance_by_others` has it: other processes took so much that it shows.
        p.environment.contention.others_share > 0.15 OR p.environment.contention.others_share > 0.02
            AND coalesce(p.environment.contention.waiting_share > 0.05, false) AS disturbed,
        p.provenance, p.status, p.reason, p.failure_class, p.remedy,
        occurred_at, p.occurred_local, recorded_at, source, p.source_path
    FROM named AS p
)
SELECT *, $broken_rules AS broken_rules FROM rows
