"""Training data: evidence from the tables, samples and their features."""
