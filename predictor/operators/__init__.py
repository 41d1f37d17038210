"""Operators: what limits each on a device, how much of that limit it reaches, and whole models as their sum."""
