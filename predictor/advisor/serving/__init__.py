"""Serving answers: deployments to choose among, their ranking, their evidence and the commands that start them."""
