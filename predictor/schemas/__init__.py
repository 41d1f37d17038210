"""Typed requests and responses that CLI, service and Python share.

`requests` and `responses` are those of recommendations, `serving` those of language models under load. `queries` holds
the parameters of routes that read, `rows` the rows of the tables that they return, and `ingest` what may be posted.
`messages` words what is wrong with a value.
"""
