"""Readers that several formats of one tool share."""
