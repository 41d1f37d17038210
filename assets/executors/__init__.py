"""Executors of requested benchmarks: their next step, run launcher and heartbeats, clusters of Kubernetes and Slurm."""
