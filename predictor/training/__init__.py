"""Training, promotion and evaluation of the predictor."""
