"""The warehouse: DuckDB tables projected from the event log, audited, published by pointer, and queried.

`publish.refresh` brings the tables up to the log, in these steps:

1. `build_layer` fills a DuckDB file with the rows of the new events, by the SELECT per table in `sql/`. Where the
   settings choose Spark, `spark_engine` computes them, with the SQL that `spark_sql` translates.
2. `rules` states the data rules, and audits the new rows.
3. `compat_matrix` adds the compatibility matrix. It also has that matrix over a part of the evidence.
4. `publish` moves the pointer `CURRENT`, and removes old projections.

A projection is a list of such files (`layers`). `reader` answers queries from the one in service, `sandbox` those of
untrusted users. `time_travel` builds the tables of past snapshots. `validate` checks log and tables, `export` writes
tables to files, and `dictionary` explains their columns.
"""
