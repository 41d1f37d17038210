"""Everything Dagster: the asset graph from hardware and measurements to the predictor. Nothing is computed here.

`definitions.build_defs` puts the graph together; `local` runs it in this process for `accel run`.
"""
