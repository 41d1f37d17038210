"""Planning of benchmark runs: configuration, cells, time estimates and device locks."""
