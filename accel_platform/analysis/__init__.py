"""Analyses of the warehouse's tables, computed when they are read.

`query` reads selected results as cells and series, and `stats` has the statistics of samples. On these stand
`regressions` (what changed between runs, commits, snapshots or over time) and `summaries` (matrix, comparisons,
rooflines and other views).
"""
