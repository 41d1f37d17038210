"""Request and response schemas of the HTTP service."""
