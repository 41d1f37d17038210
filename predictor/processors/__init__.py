"""Processor predictor: latency of a model on a processor that nobody measured, by its published rates.

1. `predictor`: an additive roofline for each runtime, with limits. It ships fitted.
2. `fit`: makes that predictor from the shipped figures, and measures its errors on processors that were left out.
"""
