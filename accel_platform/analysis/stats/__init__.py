"""Statistics of latency samples: change points, significance and regression tests."""
