"""Reports on a snapshot, as documents in every format."""
