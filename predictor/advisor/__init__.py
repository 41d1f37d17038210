"""The advisor: from a query to ranked hardware with reasons."""
