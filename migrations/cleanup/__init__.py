"""Deletion of source files that the log holds completely."""
