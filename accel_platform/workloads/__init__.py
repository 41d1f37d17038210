"""What is measured: models by name, their inputs, and what they cost on paper. Nothing is timed here."""
