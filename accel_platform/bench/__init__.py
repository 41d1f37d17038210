"""Measuring: what to measure, in which process, how often, and whether the outputs are right."""
