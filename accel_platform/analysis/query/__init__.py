"""Selections of results, and the cells, series and runs that they form.

`filters` turns names into SQL conditions. `cells` pools the results of equal configurations into one figure, and
`setups` names the software behind them. `measured` returns own measurements as series of processes in order of time.
`run_refs` finds the runs of a commit or id. `series` reads a column of numbers from any CSV file.
"""
