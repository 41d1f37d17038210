"""Altair charts of results, one specification for pages, service and files."""
