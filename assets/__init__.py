"""The Dagster asset graph, from hardware and measurements to the predictor.

`definitions.build_defs` puts the graph together; `run_in_process` runs it for `accel run`.
"""
