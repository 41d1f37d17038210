"""Summaries of the tables: compatibility matrix, comparisons, rooflines and coverage of the data."""
