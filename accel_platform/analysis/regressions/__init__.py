"""What changed: commits against baselines, snapshots against snapshots, series over time."""
