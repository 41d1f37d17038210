"""The Dagster asset graph, from hardware and measurements to the predictor.

The assets in the order of the graph, with their modules:

1. `events`: `hardware_inventory`, `measurements`, and the log as one snapshot, `raw_events`. `legacy_imports` adds
   imported files to the log, one partition per source (`partitions`).
2. `tables`: `results`, the tables built but not in service, with the data rules as blocking checks (`checks`).
3. `matrix`: `compat_matrix`, which puts the checked tables into service.
4. `regressions`, `models` (the predictor) and `report`, made from these tables.

`data_versions` passes the snapshot down the graph. `automation` says when an asset is made anew, and `triggers` holds
jobs, schedules and sensors. `definitions.build_defs` puts the graph together; `run_in_process` runs it for `accel run`.

Requested benchmarks are apart from the graph: `hosts` defines the jobs of one host, and `executors` runs them.
"""
