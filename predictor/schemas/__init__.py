"""Typed requests and responses of the predictor."""
