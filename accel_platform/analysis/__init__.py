"""Analyses of the warehouse's tables, computed when they are read."""
