"""Measurement of one cell: sampling, verification and the measuring worker process."""
