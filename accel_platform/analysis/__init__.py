"""What the tables mean: computed on reading, from the warehouse alone."""
