-- The layer's results with the verdict on their outputs: `verified` is NULL where they were never checked. A verification
-- may have come in a lower layer. Another run's does not count, because a driver may have been fixed, or broken, in between.
WITH runs AS (SELECT DISTINCT run_id FROM new_events WHERE type = 'ResultRecorded'),
-- Of the runs at hand, because grouping all verifications would cost an increment more than all else.
checked AS (
    SELECT * FROM all_verifications WHERE run_id IN (SELECT run_id FROM runs)
    UNION ALL SELECT * FROM all_verifications WHERE run_id IS NULL
),
verdicts AS (SELECT $output_columns, bool_and(passed) AS passed FROM checked GROUP BY $output_columns)
SELECT r.*, v.passed AS verified
FROM ($result_fields) AS r
LEFT JOIN verdicts AS v ON $same_output
