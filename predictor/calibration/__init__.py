"""Calibration of predictions: cross-validation, conformal intervals, memory and failure models."""
