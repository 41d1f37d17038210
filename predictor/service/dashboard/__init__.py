"""Dashboard pages rendered on the server, one module per group of pages."""
