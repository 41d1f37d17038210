-- The layer's results of each run and source, counted for `runs`, which then need no scan of all results.
SELECT run_id, source, count(*) AS results
FROM new_results
WHERE broken_rules IS NULL AND run_id IS NOT NULL
GROUP BY run_id, source
