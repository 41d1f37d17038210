"""The HTTP service: an API over the warehouse, the log and the advisor, and the dashboard."""
