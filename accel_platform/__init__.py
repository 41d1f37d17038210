"""The platform's core: events, measurement, warehouse and analysis; neither Dagster nor FastAPI is imported here."""
