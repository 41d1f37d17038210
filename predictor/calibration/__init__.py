"""Calibration of predictions: how far they err on what the training set lacks, and intervals that follow from it.

1. `cross_validation` fits latency models (`predictor.models`) without some families or devices. It records their errors
   by regime, which is what the training set lacks of a sample. `cv_splits` has the folds.
2. `conformal` turns such errors into the width of an interval and the share of figures that it holds.
3. `memory_model` predicts peak memory with its own calibration, and `failure_model` the probability of failures.
4. `predictor` holds the fitted parts of an artifact, and answers for samples with intervals or a reason to abstain.

Errors are natural logs of predicted over measured figures throughout; half widths are in the same logs.
"""
