"""Benchmarks that somebody requested, as events."""
