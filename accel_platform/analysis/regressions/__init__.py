"""Comparisons: commits with baselines, snapshots with snapshots, series over time."""
