"""Commands that show results: matrix, comparisons, charts, reports and regressions."""
