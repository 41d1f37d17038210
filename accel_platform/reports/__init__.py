"""Documents, charts and exchange files made of results."""
