"""Background work of the service: warehouse updates, change feed, ingestion."""
