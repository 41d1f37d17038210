"""Smallest changes that comparisons report by default, in percent of a median.

They have a module of their own, because commands show them in `--help` and must not import NumPy for that.
"""

MIN_CHANGE_PERCENT = 3.0
"""Smallest change in checks, trends, recorded shifts and cell comparisons."""
MIN_MEDIAN_CHANGE_PERCENT = 1.0
"""Smallest move of a cell's median between two snapshots' tables; a median moves a little with every result."""
MIN_SERIES_CHANGE_PERCENT = 1.0
"""Smallest shift in a plain series of values, such as that of a CSV file."""
