"""The warehouse: DuckDB tables projected from the event log, audited, published by pointer, and queried."""
