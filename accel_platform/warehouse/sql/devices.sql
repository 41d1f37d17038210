-- Each hardware name on each host as it was last seen: the device behind it, or why there is none.
WITH observed AS ($device_observations),
-- One detection observes every name, so what an older one saw and the newest did not is gone from that host.
ranked AS (
    SELECT host_id, hardware, choice, device_id, event_id,
        rank() OVER (PARTITION BY host_id, hardware ORDER BY observed_at DESC) AS age
    FROM observed
),
latest AS (
    SELECT max(event_id) AS event_id FROM ranked WHERE age = 1 GROUP BY host_id, hardware, choice, device_id
)
SELECT o.* FROM observed AS o JOIN latest ON latest.event_id = o.event_id
