"""Which hardware for this model? Answers from evidence first, from a learned model second, always saying which."""
