-- One row per document that an import looked at and accounted for; `supersedes` names the entry that this one replaces.
SELECT event_id, run_id, occurred_at, unnest(json_transform(payload, '{
    "source_path": "VARCHAR", "content_sha256": "VARCHAR", "format": "VARCHAR", "outcome": "VARCHAR",
    "size_bytes": "BIGINT", "records": "INTEGER", "failures": "INTEGER", "suspects": "INTEGER",
    "reason": "VARCHAR", "supersedes": "UUID"}'))
FROM new_events
WHERE type = 'DocumentImported'
