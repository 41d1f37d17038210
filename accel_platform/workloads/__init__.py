"""Workloads: models by name, their inputs, weights and cost on paper."""
