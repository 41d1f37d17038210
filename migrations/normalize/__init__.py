"""Normalization: names, units and records in the platform's own terms."""
