"""Execution of requested benchmarks.

`routing` decides the next step of a request, and claims it for a host. `heartbeat` detects lost runs, and stops runs
with `accel ui`. `cluster` maps hardware names to devices of Kubernetes or Slurm. `slurm` submits and watches jobs,
which run `slurm_job` on their node.
"""
