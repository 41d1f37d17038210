-- Verdicts of this layer's verifications on results of lower layers, which cannot change any more.
WITH runs AS (SELECT DISTINCT run_id FROM new_verifications),
judged AS (
    SELECT * FROM lower_results WHERE run_id IN (SELECT run_id FROM runs)
    UNION ALL SELECT * FROM lower_results WHERE run_id IS NULL
)
SELECT r.event_id AS result_id, bool_and(v.passed) AS passed
FROM judged AS r
JOIN new_verifications AS v ON $same_output
GROUP BY r.event_id
