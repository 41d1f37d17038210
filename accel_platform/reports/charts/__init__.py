"""Charts: one Altair specification each for page, service and file. What the figures mean is decided in `analysis`."""
