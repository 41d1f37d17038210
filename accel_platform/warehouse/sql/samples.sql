-- Every raw sample, in the order taken. A view: the samples themselves lie once, with their event.
SELECT event_id AS result_id, generate_subscripts(samples_ns, 1) AS sample, unnest(samples_ns) / 1e6 AS latency_ms
FROM events
WHERE samples_ns IS NOT NULL
