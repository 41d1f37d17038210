"""Rows as text, pages and files: every format in which commands, routes and reports give out tables, once.

What is in the rows is decided elsewhere. `values.py` says how one cell reads, `text.py` how people see tables,
`files.py` and `sheet.py` how other tools do.
"""
