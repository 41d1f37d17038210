"""Statistics of latency samples: medians with their intervals, and the significance of differences."""
