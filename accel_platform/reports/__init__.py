"""Files made of results: documents for other tools, and charts. Nothing is measured or decided here."""
