"""The import pipeline: files on disk to events in the log."""
