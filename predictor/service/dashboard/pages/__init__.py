"""Pages of the dashboard: a module per noun, each with its query and its routes."""
