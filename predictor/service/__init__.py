"""The advisor over HTTP: everything FastAPI. What is answered is decided in `predictor`, not here."""
