-- The layer's results of each model and source, counted for `models`, which then need no scan of all results.
SELECT model_id, source, min(model_family) AS model_family, count(*) AS results
FROM new_results
WHERE broken_rules IS NULL AND model_family <> 'microbenchmark'
GROUP BY model_id, source
