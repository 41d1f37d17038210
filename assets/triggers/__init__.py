"""Triggers of the graph's runs: jobs, schedules and sensors, and the work at night that makes no asset."""
