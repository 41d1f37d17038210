"""Execution of benchmark runs: worker processes, recording, fallbacks."""
