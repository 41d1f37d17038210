"""Selections of results and the cells, series and runs they form."""
