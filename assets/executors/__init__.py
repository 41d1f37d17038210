"""Where a requested benchmark runs: its next step, run launcher and heartbeats, clusters of Kubernetes and Slurm."""
