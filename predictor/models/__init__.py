"""Latency models: analytical roofline, residual trees, Gaussian process and baselines."""
