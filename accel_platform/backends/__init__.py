"""Backends: one module per runtime behind the protocol of `base.py`, with detection of what this host has."""
